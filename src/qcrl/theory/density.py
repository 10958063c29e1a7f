"""The density of the discounted cost-to-go, by the distributional Bellman equation in the Fourier domain.

The characteristic function obeys phi_s(w) = E[exp(-i w c) phi_s'(discount w)]. Unrolled until discount**n w is small,
where two moments are enough, it is exact at every frequency. The cost-to-go is bounded, so a window over its support
suffers no aliasing, and noise in the costs makes phi fall faster than any power: the only error left is the size of phi
at the highest frequencies, which is returned. Without noise there may be no density; the grid's bracket still works.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Complex, Float
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq

from qcrl.errors import UserError
from qcrl.theory.cmdp import CMDP, check_policy, moments


@dataclass(frozen=True, eq=False)
class Density:
    """Distribution of the cumulative cost of one state."""

    points: Float[np.ndarray, " N"]
    """Evenly spaced costs over the whole support."""
    pdf_values: Float[np.ndarray, " N"]
    cdf_values: Float[np.ndarray, " N"]
    truncation: float
    """Size of the characteristic function at the highest frequencies kept."""

    @cached_property
    def _pdf(self) -> CubicSpline:
        return CubicSpline(self.points, self.pdf_values)

    @cached_property
    def _cdf(self) -> CubicSpline:
        return CubicSpline(self.points, self.cdf_values)

    def pdf(self, cost: np.ndarray) -> np.ndarray:
        inside = (cost >= self.points[0]) & (cost <= self.points[-1])
        return np.where(inside, np.maximum(self._pdf(np.where(inside, cost, self.points[0])), 0), 0)

    def cdf(self, cost: np.ndarray) -> np.ndarray:
        return np.clip(self._cdf(np.clip(cost, self.points[0], self.points[-1])), 0, 1)

    def outage(self, limit: float) -> float:
        """Pr(X > limit)."""
        return 1 - float(self.cdf(np.asarray(limit)))

    def quantile(self, level: float) -> float:
        """inf {x : Pr(X <= x) >= level}; the ends of the support at levels 0 and 1."""
        if level <= 0 or level >= 1:
            return float(self.points[0 if level <= 0 else -1])
        above = int(np.argmax(self.cdf_values >= level))
        return float(brentq(lambda x: float(self._cdf(x)) - level, *self.points[[above - 1, above]], xtol=1e-14))

    def cvar(self, level: float) -> float:
        """Mean of the worst share 1 - level."""
        quantile = self.quantile(level)
        below = self._cdf.integrate(quantile, self.points[-1])
        return quantile + (self.points[-1] - quantile - float(below)) / (1 - level)

    def mean(self) -> float:
        return float(self.points[-1]) - float(self._cdf.integrate(self.points[0], self.points[-1]))


def densities(
    cmdp: CMDP,
    policies: Float[np.ndarray, "P S A"],
    horizon: int | None = None,
    tolerance: float = 1e-11,
    largest: int = 2**15,
) -> list[list[Density]]:
    """For every policy the distribution of each state's cost-to-go. Grid points double until `tolerance` is met."""
    policies = check_policy(cmdp, policies)
    low, high = cmdp.support(horizon)
    size = 512
    while True:
        frequency = 2 * np.pi / (high - low) * np.arange(size // 2 + 1)
        tail = np.abs(_characteristic(cmdp, policies, frequency[-8:], low, horizon)).max()
        if tail < tolerance:
            break
        if size == largest:
            raise UserError(
                f"the cost noise is too narrow: with {size} grid points the characteristic function is still "
                f"{tail:.1e}, so the distribution is close to having atoms; widen the noise or use the grid bracket"
            )
        size *= 2
    phi = _characteristic(cmdp, policies, frequency, low, horizon)
    width, fine = high - low, 4 * size  # finer than the frequencies ask, for the splines' sake
    points = np.linspace(low, high, fine + 1)
    integral = np.concatenate([np.zeros_like(phi[..., :1]), phi[..., 1:] / (1j * frequency[1:])], -1)
    pdf, wave = (np.fft.irfft(each, fine) * fine / width for each in (phi, integral))
    pdf, wave = (np.concatenate([each, each[..., :1]], -1) for each in (pdf, wave))
    cdf = (points - low) / width + wave - wave[..., :1]
    return [
        [Density(points, pdf[p, s], cdf[p, s], float(tail)) for s in range(cmdp.states)] for p in range(len(policies))
    ]


def density(cmdp: CMDP, policy: Float[np.ndarray, "S A"], horizon: int | None = None) -> list[Density]:
    """The distribution of each state's discounted cost-to-go under one policy."""
    return densities(cmdp, np.asarray(policy)[None], horizon)[0]


def _characteristic(
    cmdp: CMDP, policies: np.ndarray, frequency: np.ndarray, low: float, horizon: int | None
) -> Complex[np.ndarray, "P S W"]:
    """E exp(-i w (X - low)) for every policy, state and frequency w."""
    shape = (len(policies), cmdp.states, len(frequency))
    if horizon is None:
        mean, variance = np.stack([moments(cmdp, policy) for policy in policies], 1)
        # The third-order term that is left out is of size (w discount**n deviation)**3.
        reach = max(float(frequency[-1]) * math.sqrt(float(variance.max())), 1e-3) / 1e-4
        steps = math.ceil(math.log(reach) / -math.log(cmdp.discount))
        scaled = cmdp.discount**steps * frequency
        phi = np.exp(-1j * mean[..., None] * scaled - variance[..., None] * scaled**2 / 2)
    else:
        steps = horizon
        phi = np.ones(shape, dtype=complex)
    transition = cmdp.transition.reshape(-1, cmdp.states).astype(complex)
    middle = (cmdp.cost + cmdp.width / 2)[..., None]
    for step in reversed(range(steps)):
        scaled = cmdp.discount**step * frequency
        # Triangular noise is the sum of two uniform ones: sinc squared about the middle.
        kernel = np.exp(-1j * scaled * middle) * np.sinc(cmdp.width[..., None] * scaled / (4 * np.pi)) ** 2
        following = (transition @ phi).reshape(shape[0], cmdp.states, cmdp.actions, shape[2])
        phi = np.einsum("psa,saw,psaw->psw", policies, kernel, following)
    return phi * np.exp(1j * frequency * low)
