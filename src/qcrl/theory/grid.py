"""The distributional Bellman operator on a grid, rounded outwards: a bracket that contains the exact distribution.

Works with or without atoms, discounted or over a finite horizon. Rounding every sum down to the grid gives a cost that
is never larger than the true one, rounding up one that is never smaller, so the two distributions enclose the exact one
in the usual stochastic order. A step moves a value by at most one grid cell for the sum and one for the noise, and
later steps are discounted: quantiles of the two sides are at most 4 spacing / (1 - discount), plus what is left of the
starting guess, apart. Whole costs without discount need no rounding, and the two sides are then equal and exact.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.signal import fftconvolve

from qcrl.errors import UserError
from qcrl.theory.cmdp import CMDP, check_policy, total_weight


@dataclass(frozen=True, eq=False)
class Bracket:
    """Cumulative cost of every state, from below and from above. Methods return arrays of (low, high) per state."""

    spacing: float
    """Distance of grid points; point j stands for the cost j * spacing."""
    low: Float[np.ndarray, "S N"]
    """Probability of each grid point with all rounding downwards."""
    high: Float[np.ndarray, "S N"]
    """The same with all rounding upwards."""
    error_bound: float
    """Guaranteed largest distance between the two sides' quantiles, at any level."""

    def quantile(self, level: float) -> Float[np.ndarray, "S 2"]:
        """inf {x : Pr(X <= x) >= level}."""
        return np.stack([_first(side.cumsum(-1) >= level - 1e-12) * self.spacing for side in (self.low, self.high)], -1)

    def cdf(self, cost: float) -> Float[np.ndarray, "S 2"]:
        cells = math.floor(cost / self.spacing + 1e-9) + 1
        return np.stack([side[:, : max(cells, 0)].sum(-1) for side in (self.high, self.low)], -1)

    def outage(self, limit: float) -> Float[np.ndarray, "S 2"]:
        """Pr(X > limit), summed from the tail so that small probabilities keep their digits."""
        cells = math.floor(limit / self.spacing + 1e-9) + 1
        return np.stack([side[:, max(cells, 0) :].sum(-1) for side in (self.low, self.high)], -1)

    def cvar(self, level: float) -> Float[np.ndarray, "S 2"]:
        """Mean of the worst share 1 - level; an atom at the quantile is split."""
        points = np.arange(self.low.shape[1]) * self.spacing
        sides = []
        for side, quantile in zip((self.low, self.high), self.quantile(level).T):
            excess = np.maximum(points - quantile[:, None], 0)
            sides.append(quantile + (side * excess).sum(-1) / (1 - level))
        return np.stack(sides, -1)

    def mean(self) -> Float[np.ndarray, "S 2"]:
        points = np.arange(self.low.shape[1]) * self.spacing
        return np.stack([self.low @ points, self.high @ points], -1)


def _first(condition: np.ndarray) -> np.ndarray:
    return np.where(condition.any(-1), condition.argmax(-1), condition.shape[-1] - 1)


def bracket(
    cmdp: CMDP,
    policy: Float[np.ndarray, "S A"],
    horizon: int | None = None,
    spacing: float | None = None,
    points: int = 4096,
) -> Bracket:
    """The cumulative cost of every state, discounted by `cmdp.discount`, over `horizon` steps (None: for ever).

    `spacing` sets the grid; without it the whole support is covered by `points` cells.
    """
    policy = check_policy(cmdp, policy)
    upper = max(cmdp.support(horizon)[1], 1e-300)
    spacing = upper / (points - 2) if spacing is None else spacing
    size = math.ceil(upper / spacing - 1e-9) + 2
    if size > 2_000_000:
        raise UserError(f"a spacing of {spacing} needs {size:,} grid points for costs up to {upper}; use a wider one")
    steps = horizon
    if steps is None:
        steps = max(1, math.ceil(math.log(spacing / upper) / math.log(cmdp.discount)))
    sides = [_iterate(cmdp, policy, steps, spacing, size, up, endless=horizon is None) for up in (False, True)]
    on_grid = cmdp.discount == 1 and np.allclose(cmdp.cost / spacing, np.round(cmdp.cost / spacing), atol=1e-9)
    roundings = (0 if on_grid else 1) + (1 if cmdp.width.any() else 0)
    bound = 2 * roundings * spacing * total_weight(cmdp.discount, steps)
    if horizon is None:
        bound += cmdp.discount**steps * (size - 1) * spacing
    return Bracket(spacing, sides[0], sides[1], bound)


def _iterate(
    cmdp: CMDP, policy: np.ndarray, steps: int, spacing: float, size: int, up: bool, endless: bool
) -> Float[np.ndarray, "S N"]:
    """Apply X(s) = cost + discount X(s') `steps` times, from the least (endless and upwards: the largest) cost."""

    def rounded(values):
        return (np.ceil(values - 1e-9) if up else np.floor(values + 1e-9)).astype(np.intp)

    moved = rounded(cmdp.cost[..., None] / spacing + cmdp.discount * np.arange(size))
    # Beyond the end there is only rounding dust: the true cost never exceeds the grid.
    moved = np.minimum(moved, size - 1)
    noise = {
        (s, a): _noise(cmdp.width[s, a] / spacing, up)
        for s in range(cmdp.states)
        for a in range(cmdp.actions)
        if cmdp.width[s, a] > 0
    }
    mass = np.zeros((cmdp.states, size))
    mass[:, size - 1 if (up and endless) else 0] = 1
    for _ in range(steps):
        after = np.zeros_like(mass)
        for s in range(cmdp.states):
            for a in np.flatnonzero(policy[s]).tolist():
                shifted = np.bincount(moved[s, a], cmdp.transition[s, a] @ mass, minlength=size)
                if (s, a) in noise:
                    wide = np.maximum(fftconvolve(shifted, noise[s, a]), 0)
                    shifted = wide[:size]
                    shifted[-1] += wide[size:].sum()
                after[s] += policy[s, a] * shifted
        mass = after
    return mass


def triangular_cdf(x: np.ndarray) -> np.ndarray:
    """CDF of the mean of two uniform variables on [0, 1]."""
    x = np.clip(x, 0, 1)
    return np.where(x < 0.5, 2 * x**2, 1 - 2 * (1 - x) ** 2)


def _noise(cells: float, up: bool) -> np.ndarray:
    """Triangular noise on [0, cells], rounded to whole cells."""
    edges = triangular_cdf(np.arange(math.ceil(cells) + 1) / cells)
    return np.concatenate([[0.0], np.diff(edges)]) if up else np.diff(edges)
