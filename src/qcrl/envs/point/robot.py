"""Safety Gym's Point robot as numbers, read by both engines. SI units; density 1, so volumes are masses."""

TIMESTEP = 0.002
SUBSTEPS = 10
"""Physics steps per action."""
STEP_SECONDS = TIMESTEP * SUBSTEPS
GRAVITY = 9.81
MAGNETIC_FIELD = 0.5

RADIUS = 0.1
"""Of the sphere, whose centre stands as high above the floor."""
ARROW_OFFSET = 0.1
ARROW_HALF = 0.05
SLIDE_DAMPING = 0.01
HINGE_DAMPING = 0.005
GEAR = 0.3
FORCE_LIMIT = 0.05
"""Of each actuator, before its gear."""
