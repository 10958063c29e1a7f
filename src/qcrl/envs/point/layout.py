"""Where things stand at the start of an episode."""

from typing import Any, NamedTuple

from jaxtyping import Float, Int

Numbers = Any
"""An array of NumPy or of JAX, or one number of a kind that goes with it: both engines have layouts."""


class Layout(NamedTuple):
    """One placement of all objects of a task. Counts may be zero; `goal` is unused in button tasks."""

    robot: Float[Numbers, "2"]
    heading: Float[Numbers, ""]
    goal: Float[Numbers, "2"]
    buttons: Float[Numbers, "buttons 2"]
    hazards: Float[Numbers, "hazards 2"]
    gremlins: Float[Numbers, "gremlins 2"]
    """Centres of the circles on which the gremlins travel."""
    gremlin_yaw: Float[Numbers, " gremlins"]
    goal_button: Int[Numbers, ""]
