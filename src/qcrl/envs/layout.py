"""Where things stand at the start of an episode."""

from typing import Any, NamedTuple

from jaxtyping import Float, Int


class Layout(NamedTuple):
    """One placement of all objects of a task. Counts may be zero; `goal` is unused in button tasks."""

    robot: Float[Any, "2"]
    heading: Float[Any, ""]
    goal: Float[Any, "2"]
    buttons: Float[Any, "buttons 2"]
    hazards: Float[Any, "hazards 2"]
    gremlins: Float[Any, "gremlins 2"]
    """Centres of the circles on which the gremlins travel."""
    gremlin_yaw: Float[Any, " gremlins"]
    goal_button: Int[Any, ""]
