"""Large deviations of a Markov chain's mean cost, and how far Weibull and Gaussian tails can be trusted.

The mean cost Z_n of n steps obeys Pr(Z_n >= z) = exp(-n I(z) + o(n)). The rate function I is the convex conjugate of
the logarithm of the Perron-Frobenius eigenvalue of the tilted matrix M(j|i) exp(tilt f(j)), as in the paper's appendix.
"""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from scipy.stats import norm, weibull_min

from qcrl.errors import UserError
from qcrl.theory.cmdp import CMDP, check_policy

LEVELS = (np.arange(25) + 0.5) / 25
"""The paper's quantile levels; its Weibull tail is fitted to the last eight."""


def state_action_chain(cmdp: CMDP, policy: Float[np.ndarray, "S A"]) -> tuple[np.ndarray, np.ndarray]:
    """The Markov chain on (state, action) pairs under a policy, and the cost of each pair."""
    policy = check_policy(cmdp, policy)
    if cmdp.width.any():
        raise UserError(
            "the costs are noisy; set the noise widths to 0, so that a pair of state and action has one cost"
        )
    size = cmdp.cost.size
    matrix = np.einsum("sat,tb->satb", cmdp.transition, policy).reshape(size, size)
    return matrix, cmdp.cost.ravel()


def cumulant(matrix: Float[np.ndarray, "n n"], values: Float[np.ndarray, " n"], tilt: float) -> float:
    """log of the Perron-Frobenius eigenvalue of the matrix tilted by exp(tilt * values)."""
    largest = float((tilt * values).max())  # taken out of the exponential, so that it cannot overflow
    tilted = matrix * np.exp(tilt * values - largest)
    return largest + math.log(float(np.abs(np.linalg.eigvals(tilted)).max()))


def rate_function(matrix: Float[np.ndarray, "n n"], values: Float[np.ndarray, " n"], mean: float) -> float:
    """I(mean) = sup over the tilt of tilt * mean - cumulant(tilt); infinite where no path has this mean cost."""
    spread = float(values.max() - values.min())
    if spread == 0:
        return 0.0 if mean == values[0] else math.inf
    # Beyond this tilt a single unit of spread weighs e**300: the supremum is not attained, it is infinite.
    reach = 300 / spread
    result = minimize_scalar(
        lambda tilt: cumulant(matrix, values, tilt) - tilt * mean,
        bounds=(-reach, reach),
        method="bounded",
        options={"xatol": 1e-9},
    )
    if abs(result.x) > 0.99 * reach:
        return math.inf
    return max(0.0, -float(result.fun))


@dataclass(frozen=True)
class TailFit:
    """Weibull tail through the paper's eight highest quantiles, and the Gaussian with the same mean and variance."""

    shape: float
    scale: float
    mean: float
    deviation: float

    def weibull(self, exceedance: ArrayLike) -> np.ndarray:
        """The cost that is exceeded with this probability, by the Weibull tail."""
        return weibull_min.isf(exceedance, self.shape, scale=self.scale)

    def gaussian(self, exceedance: ArrayLike) -> np.ndarray:
        return norm.isf(exceedance, self.mean, self.deviation)

    def weibull_outage(self, limit: ArrayLike) -> np.ndarray:
        return weibull_min.sf(limit, self.shape, scale=self.scale)

    def gaussian_outage(self, limit: ArrayLike) -> np.ndarray:
        return norm.sf(limit, self.mean, self.deviation)


def fit_tails(quantiles: Float[np.ndarray, " 25"], mean: float, deviation: float, highest: int = 8) -> TailFit:
    """The tails that a perfect critic would give: `quantiles` at LEVELS, exact mean and standard deviation."""
    tail = np.asarray(quantiles, dtype=np.float64)[-highest:]
    if (tail <= 0).any():
        raise UserError("a quantile that the Weibull tail is fitted to is 0; it needs costs above 0 at the 0.70 level")
    # The least-squares line through log quantiles over log(-log(1 - u)) minimises the paper's Weibull loss.
    slope, intercept = np.polyfit(np.log(-np.log1p(-LEVELS[-highest:])), np.log(tail), 1)
    return TailFit(float(1 / slope), float(np.exp(intercept)), mean, deviation)
