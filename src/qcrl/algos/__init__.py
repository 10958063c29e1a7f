"""The algorithms: one file each. `find` knows those in this folder, and those that are named as module:Class."""
