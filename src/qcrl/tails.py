"""Tails of the cost distribution: quantile, log density, CVaR, fits, and the density ratio that QCPO takes from them.

Every function broadcasts over the batch shape of its tail. CVaR is the mean of the worst share `mass` of outcomes.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln, ndtri
from jax.scipy.stats import norm
from jaxtyping import Array, Float

Scalar = Float[Array, ""] | float
LAGUERRE = np.polynomial.laguerre.laggauss(16)
"""Nodes and weights; the CVaR of a Weibull tail is then exact to 1e-6 for masses up to a half, to 2e-4 for 0.9."""
INVERSE_SHAPES = 1 / 50, 5.0
NEWTON_STEPS = 5


class Weibull(NamedTuple):
    """Pr(X > x) = exp(-(x / scale) ** shape); the paper's alpha is `shape`, its beta `scale`."""

    shape: Float[Array, "*batch"]
    scale: Float[Array, "*batch"]

    def quantile(self, level: Scalar) -> Float[Array, "*batch"]:
        return self.scale * rate(level) ** (1 / self.shape)

    def log_pdf(self, x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """Minus infinity below 0, where a cost never lies."""
        log_ratio = jnp.log(jnp.where(x > 0, x, 1.0) / self.scale)
        # Bounded where the density is 0 in any case, so that a ratio of two such densities stays a number.
        exponent = jnp.exp(jnp.minimum(self.shape * log_ratio, 30.0))
        inside = jnp.log(self.shape / self.scale) + (self.shape - 1) * log_ratio - exponent
        return jnp.where(x > 0, inside, -jnp.inf)

    def cvar(self, mass: Scalar) -> Float[Array, "*batch"]:
        """(scale / mass) Gamma(1 + 1/shape, log(1/mass)), the upper incomplete gamma function.

        It is the integral of scale (log(1/mass) + y)^(1/shape) exp(-y) over y > 0, taken by Gauss and Laguerre's rule:
        an accelerator computes that without the loops of the incomplete gamma function, and it has a gradient.
        """
        exponent = jnp.asarray(1 / self.shape)[..., None]
        return self.scale * jnp.sum(LAGUERRE[1] * (LAGUERRE[0] - jnp.log(mass)) ** exponent, axis=-1)

    @classmethod
    def from_moments(cls, mean: Float[Array, "*batch"], variance: Float[Array, "*batch"]) -> "Weibull":
        """The Weibull distribution with this mean and variance, its shape kept between 1/5 and 50.

        With z = 1/shape, log(1 + variance / mean^2) = log Gamma(1 + 2z) - 2 log Gamma(1 + z) is solved for z by
        Newton's method. Its last step alone passes gradients on, which makes them those of the solution.
        """
        mean = jnp.maximum(mean, 1e-4)
        spread = jnp.clip(jnp.log1p(variance / jnp.square(mean)), *(_log_spread(z) for z in INVERSE_SHAPES))
        # The two ends of the curve: a parabola where shapes are large, a line where they are small.
        inverse = jnp.minimum(jnp.sqrt(spread) * 0.78, 0.25 + 0.9 * spread)
        for _ in range(NEWTON_STEPS):
            inverse = jax.lax.stop_gradient(inverse)
            slope = 2 * (digamma(1 + 2 * inverse) - digamma(1 + inverse))
            inverse = jnp.clip(inverse - (_log_spread(inverse) - spread) / slope, *INVERSE_SHAPES)
        return cls(1 / inverse, mean * jnp.exp(-gammaln(1 + inverse)))


class Gaussian(NamedTuple):
    """A normal distribution given by mean and variance."""

    mean: Float[Array, "*batch"]
    variance: Float[Array, "*batch"]

    def quantile(self, level: Scalar) -> Float[Array, "*batch"]:
        return self.mean + jnp.sqrt(self.variance) * ndtri(level)

    def log_pdf(self, x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        return norm.logpdf(x, self.mean, jnp.sqrt(self.variance))

    @classmethod
    def from_moments(cls, mean: Float[Array, "*batch"], variance: Float[Array, "*batch"]) -> "Gaussian":
        return cls(mean, variance)

    def cvar(self, mass: Scalar) -> Float[Array, "*batch"]:
        return self.mean + jnp.sqrt(self.variance) * norm.pdf(ndtri(mass)) / mass


def _log_spread(inverse_shape: Scalar) -> Array:
    """log(1 + squared coefficient of variation) of a Weibull distribution."""
    return gammaln(1 + 2 * inverse_shape) - 2 * gammaln(1 + inverse_shape)


def rate(level: Scalar | np.ndarray) -> Array:
    """c_u = -log(1 - u), the exponent at which a Weibull survival function equals 1 - u."""
    return -jnp.log1p(-jnp.asarray(level))


def scale_to_level(known: float, level: Scalar, shape: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """What a Weibull quantile at level `known` is multiplied by to give the one at `level`."""
    return (rate(level) / -math.log1p(-known)) ** (1 / shape)


def weibull_loss(
    tail: Weibull, quantiles: Float[Array, "*batch k"], levels: Float[Array | np.ndarray, " k"]
) -> Float[Array, "*batch"]:
    """L(xi, zeta), equation (257): half the squared error of the tail's quantiles in log scale."""
    log_quantiles = jnp.log(tail.scale)[..., None] + jnp.log(rate(levels)) / tail.shape[..., None]
    return 0.5 * jnp.mean(jnp.square(log_quantiles - jnp.log(quantiles)), axis=-1)


def fit_weibull(quantiles: Float[Array, "*batch k"], levels: Float[Array | np.ndarray, " k"]) -> Weibull:
    """The tail that minimises `weibull_loss`: a straight line through log quantiles over log rates."""
    x, y = jnp.log(rate(levels)), jnp.log(quantiles)
    centred = x - jnp.mean(x)
    slope = jnp.sum(centred * y, axis=-1) / jnp.sum(jnp.square(centred))
    return Weibull(1 / slope, jnp.exp(jnp.mean(y, axis=-1) - slope * jnp.mean(x)))


def log_density_ratio(
    tail: Weibull,
    next_tail: Weibull,
    quantile: Float[Array, "*batch"],
    cost: Float[Array, "*batch"],
    discount: float,
) -> Float[Array, "*batch"]:
    """log mu_u(s, a, s') of Theorem 1, equation (62): p_s'((q - c) / gamma) / (gamma p_s(q)).

    The denominator belongs to s, as the theorem has it; equation (272) prints the tail of s' in both places.
    """
    return next_tail.log_pdf((quantile - cost) / discount) - math.log(discount) - tail.log_pdf(quantile)


def clipped_weight(log_ratio: Float[Array, "*batch"], clip: float) -> Float[Array, "*batch"]:
    """1 + clip(log mu, -clip, clip), the weight of equation (274)."""
    return 1 + jnp.clip(log_ratio, -clip, clip)


def standardised_weight(
    log_ratio: Float[Array, "*batch"], remaining: Float[Array, "*batch"], clip: float
) -> Float[Array, "*batch"]:
    """`clipped_weight` of log ratios that are brought to mean 0 and standard deviation 1/5 over the batch first.

    Where `remaining` = (q - c) / gamma is next to nothing the density says nothing, and the log ratio counts as 0.
    """
    log_ratio = jnp.where(remaining > 1e-3, log_ratio, 0.0)
    spread = 5 * jnp.std(log_ratio) + 1e-6
    return clipped_weight((log_ratio - jnp.mean(log_ratio)) / spread, clip)
