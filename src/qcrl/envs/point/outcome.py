"""What a step of either engine reports on the host, and where each reading stands in its observation."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from qcrl.envs.point.tasks import ENERGY, Task

SENSORS = ("accelerometer", "gyro", "magnetometer", "velocimeter")


class Outcome(NamedTuple):
    """What one step returns."""

    obs: Float[np.ndarray, " obs"]
    reward: float
    cost: float
    sources: dict[str, float]
    """The cost of each kind of object that the task has, each 0 or 1."""
    terminated: bool
    """Never true in the four tasks: their episodes end by the time limit."""
    truncated: bool
    energy: float | None = None
    """Mean square of the clipped action, in tasks of the robot."""

    @property
    def costs(self) -> dict[str, float]:
        """All costs of the step by name."""
        energy = {} if self.energy is None else {ENERGY: self.energy}
        return {"cost": self.cost, **self.sources, **energy}


def observation_slices(task: Task) -> dict[str, slice]:
    """Readings in alphabetical order, as in Safety Gym: sensors have 3 values, lidars one per bin."""
    slices, start = {}, 0
    for name in sorted((*SENSORS, *(f"{kind}_lidar" for kind in task.lidars))):
        stop = start + (3 if name in SENSORS else task.lidar_bins)
        slices[name] = slice(start, stop)
        start = stop
    return slices
