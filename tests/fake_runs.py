"""Short runs of the algorithm `fake`, and what to compare of them."""

import csv

import qcrl
from qcrl import Outage

ENV = "TwoPathEnv-v0"


def train(out, algo="fake", constraint=Outage(15, 0.1), steps=100, **options):  # noqa: B008
    return qcrl.train(algo, ENV, constraint, steps=steps, out=out, checkpoint_interval=0, **options)


def rows(run):
    """metrics.csv without what depends on the clock."""
    with open(run.path / "metrics.csv", newline="") as file:
        return [{k: v for k, v in row.items() if k != "steps_per_second"} for row in csv.DictReader(file)]


def same(run, other):
    return rows(run) == rows(other) and _bytes(run, "episodes.csv") == _bytes(other, "episodes.csv")


def _bytes(run, name):
    return (run.path / name).read_bytes()
