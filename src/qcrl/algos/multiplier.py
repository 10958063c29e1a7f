"""The Lagrange multiplier and how it follows the constraint's statistic.

The error is the statistic minus its target, positive while the constraint is broken. The multiplier follows by a PI
rule; with the integral gain alone that is the paper's lam <- max(0, lam + eta * error).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from qcrl.constraints import Constraint, Steering, keys
from qcrl.sampling.learner import Scalars

HIGHEST = 1e4
"""Where a multiplier with relative gains ends."""


Weights = tuple[Float[Array, ""], ...]
"""A multiplier for each constraint."""


class Gains(NamedTuple):
    """How strongly the multiplier follows the error."""

    proportional: float
    integral: float
    smoothing: float = 0.95
    clip: float = math.inf
    relative: bool = False
    """Gains count times the multiplier, so that it can follow both in a task that needs 40 and in one that needs 2."""
    power: float = 1.0
    """With relative gains: the integral gain counts times this power of the multiplier; 1 moves it by factors."""
    least: float = 0.1
    """With relative gains: where the integral stays above. From 0 it would never rise again."""


class Multiplier(NamedTuple):
    """The multiplier and what its PI rule remembers."""

    value: Float[Array, ""]
    integral: Float[Array, ""]
    smooth_error: Float[Array, ""]

    def update(self, steering: Steering, gains: Gains) -> "Multiplier":
        """The integral follows the error, the proportional part its running mean."""
        error = jnp.clip(steering.statistic - steering.target, -gains.clip, gains.clip)
        if gains.relative:
            move = self.integral**gains.power * jnp.expm1(gains.integral * error)
            integral = jnp.clip(self.integral + move, gains.least, HIGHEST)
        else:
            integral = jnp.maximum(0.0, self.integral + gains.integral * error)
        smooth_error = gains.smoothing * self.smooth_error + (1 - gains.smoothing) * error
        follow = gains.proportional * smooth_error
        value = jnp.maximum(0.0, integral + follow * (integral if gains.relative else 1.0))
        return Multiplier(value, integral, smooth_error)

    @staticmethod
    def init(value: float) -> "Multiplier":
        start = jnp.full((), value, jnp.float32)
        return Multiplier(start, start, jnp.zeros(()))


def episode_window(window: int, probability: float, outages: int = 2) -> int:
    """How many recent episodes to judge by: `window`, or more where it would hold fewer allowed outages than this."""
    needed = outages / probability - 1e-9
    return max(window, math.ceil(min(needed, 1e300)))


def named(constraints: Sequence[Constraint], parts: Sequence[Scalars]) -> Scalars:
    """What each constraint's critic reports, by name; from the second constraint on the name says whose it is."""
    together = dict(parts[0])
    for key, part in zip(keys(constraints)[1:], parts[1:]):
        together |= {f"{name}_{key}": value for name, value in part.items()}
    return together
