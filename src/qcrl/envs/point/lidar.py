"""Safety Gym's pseudo-lidar. Written once for both engines: `xp` is `numpy` or `jax.numpy`."""

import math
from types import ModuleType

from jaxtyping import Float

from qcrl.envs.point.layout import Numbers


def lidar(
    points: Float[Numbers, "n 2"],
    position: Float[Numbers, "2"],
    direction: Float[Numbers, "2"],
    reach: Numbers,
    bins: int,
    xp: ModuleType,
) -> Float[Numbers, " bins"]:
    """Closeness of the nearest of `points` per angular bin, 1 at the robot, 0 from `reach` on.

    `direction` is (cos, sin) of the heading. A point also shines into the two neighbouring bins, in proportion to where
    it stands within its own, so that the reading is continuous as the robot turns.
    """
    # In components: on an accelerator a product with a short vector would be a launch of its own.
    x, y = points[:, 0] - position[0], points[:, 1] - position[1]
    forward = x * direction[0] + y * direction[1]
    left = y * direction[0] - x * direction[1]
    distance = xp.sqrt(forward * forward + left * left)
    signal = xp.maximum(0.0, reach - distance) / reach
    angle = xp.arctan2(left, forward) * (bins / (2 * math.pi)) % bins
    base = xp.floor(angle)
    alias = angle - base
    gap = (xp.arange(bins, dtype=signal.dtype) - base[:, None]) % bins
    share = xp.where(
        gap == 0, 1.0, xp.where(gap == 1, alias[:, None], xp.where(gap == bins - 1, 1 - alias[:, None], 0.0))
    )
    return xp.max(signal[:, None] * share, axis=0)
