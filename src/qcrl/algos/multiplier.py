"""The Lagrange multiplier: which statistic of the recent episodes drives it, and how it follows.

The error is the statistic minus its target, positive while the constraint is broken. The multiplier follows by a PID
rule; with the integral gain alone that is the paper's lam <- max(0, lam + eta * error).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from qcrl.quantiles import empirical_quantile
from qcrl.rollout import Episodes


class Window(NamedTuple):
    """Ring buffer of the most recent episodes."""

    return_: Float[Array, " window"]
    cost: Float[Array, " window"]
    seen: Int[Array, ""]
    """Episodes ever added."""

    @staticmethod
    def init(size: int) -> "Window":
        return Window(jnp.zeros(size), jnp.zeros(size), jnp.zeros((), jnp.int32))

    def add(self, episodes: Episodes) -> "Window":
        size = self.cost.shape[0]
        total = jnp.sum(episodes.finished, dtype=jnp.int32)
        rank = jnp.cumsum(episodes.finished, dtype=jnp.int32) - 1
        kept = episodes.finished & (rank >= total - size)
        slot = jnp.where(kept, (self.seen + rank) % size, size)
        return Window(
            self.return_.at[slot].set(episodes.return_, mode="drop"),
            self.cost.at[slot].set(episodes.cost, mode="drop"),
            self.seen + total,
        )

    def recent(self, count: int) -> Bool[Array, " window"]:
        """Which entries are among the last `count` episodes."""
        size = self.cost.shape[0]
        age = (self.seen - 1 - jnp.arange(size)) % size
        return age < jnp.minimum(self.seen, count)


class Steering(NamedTuple):
    """A statistic of episode costs and the value it is steered to; the multiplier is driven by their difference."""

    statistic: Float[Array, ""]
    target: Float[Array, ""]


Driver = Callable[[Array, Array, Array, Array, float], Steering]
"""(costs, which of them count, limit, probability, unit of cost inside the learner) -> Steering."""


def quantile_driver(costs: Array, valid: Array, limit: Array, probability: Array, unit: float) -> Steering:
    """The (1 - probability) quantile against the limit: the paper's. Unbounded, it can wind the multiplier far up."""
    return Steering(empirical_quantile(costs, valid, 1 - probability) / unit, limit / unit)


def outage_driver(costs: Array, valid: Array, limit: Array, probability: Array, unit: float) -> Steering:
    """The share of episodes over the limit against the probability."""
    return Steering(jnp.mean(costs > limit, where=valid), probability)


def mean_driver(costs: Array, valid: Array, limit: Array, probability: Array, unit: float) -> Steering:
    """The mean against the limit, for the expectation constraint."""
    return Steering(jnp.mean(costs, where=valid) / unit, limit / unit)


DRIVERS: dict[str, Driver] = {"quantile": quantile_driver, "outage": outage_driver, "mean": mean_driver}


RELATIVE_RANGE = 0.1, 1e4
"""Where a multiplier with relative gains stays: from 0 it would never rise again."""


class Gains(NamedTuple):
    """How strongly the multiplier follows the error."""

    proportional: float
    integral: float
    derivative: float
    smoothing: float = 0.95
    clip: float = math.inf
    relative: bool = False
    """Gains count times the multiplier, so that it can follow both in a task that needs 40 and in one that needs 2."""
    power: float = 1.0
    """With relative gains: the integral gain counts times this power of the multiplier; 1 moves it by factors."""


class Multiplier(NamedTuple):
    """The multiplier and what its PID rule remembers."""

    value: Float[Array, ""]
    integral: Float[Array, ""]
    smooth_error: Float[Array, ""]
    smooth_statistics: Float[Array, " delay"]
    """The smoothed statistic of the last iterations, oldest first."""

    @staticmethod
    def init(value: float, delay: int) -> "Multiplier":
        start = jnp.full((), value, jnp.float32)
        return Multiplier(start, start, jnp.zeros(()), jnp.zeros(delay))

    def update(self, steering: Steering, gains: Gains) -> "Multiplier":
        """P follows the smoothed error; D only pushes up, by how much the smoothed statistic rose over the delay."""
        error = jnp.clip(steering.statistic - steering.target, -gains.clip, gains.clip)
        if gains.relative:
            move = self.integral**gains.power * jnp.expm1(gains.integral * error)
            integral = jnp.clip(self.integral + move, *RELATIVE_RANGE)
        else:
            integral = jnp.maximum(0.0, self.integral + gains.integral * error)
        smooth_error = gains.smoothing * self.smooth_error + (1 - gains.smoothing) * error
        smooth = gains.smoothing * self.smooth_statistics[-1] + (1 - gains.smoothing) * steering.statistic
        rise = jnp.maximum(0.0, smooth - self.smooth_statistics[0])
        follow = gains.proportional * smooth_error + gains.derivative * rise
        value = jnp.maximum(0.0, integral + follow * (integral if gains.relative else 1.0))
        return Multiplier(value, integral, smooth_error, jnp.append(self.smooth_statistics[1:], smooth))


def episode_window(window: int, probability: float) -> int:
    """How many recent episodes to judge by: `window`, or more where that would hold fewer than two allowed outages."""
    return max(window, math.ceil(2 / probability - 1e-9))
