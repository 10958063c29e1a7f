"""Two policies that need no training, for comparing engines. `xp` is `numpy` or `jax.numpy`."""

import math
from types import ModuleType

from jaxtyping import Float

from qcrl.envs.point.layout import Numbers
from qcrl.envs.point.tasks import Task


def seek_goal(obs: Float[Numbers, " obs"], task: Task, xp: ModuleType) -> Float[Numbers, "2"]:
    """Turns towards the goal and drives at it, through anything that lies on the way."""
    start = 3 + task.lidar_bins * task.lidars.index("goal")
    scan = obs[start : start + task.lidar_bins]
    base = xp.argmax(scan)
    beyond = scan[(base + 1) % task.lidar_bins] / xp.maximum(scan[base], 1e-6)
    angle = (base + beyond) * (2 * math.pi / task.lidar_bins)
    angle = xp.where(angle > math.pi, angle - 2 * math.pi, angle)
    drive = xp.where(xp.abs(angle) < 0.7, 1.0, 0.0)
    return xp.stack([drive, xp.clip(angle, -1.0, 1.0)])
