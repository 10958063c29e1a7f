"""Tails of the cost distribution: quantile, log density, CVaR, fit, and the density ratio that QCPO takes from them.

Every function broadcasts over the batch shape of its tail. CVaR is the mean of the worst share `mass` of outcomes.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.scipy.special import gammaincc, gammaln, ndtri
from jax.scipy.stats import norm
from jaxtyping import Array, Float

Scalar = Float[Array, ""] | float


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
        """(scale / mass) Gamma(1 + 1/shape, log(1/mass)), the upper incomplete gamma function."""
        order = 1 + 1 / self.shape
        return self.scale / mass * jnp.exp(gammaln(order)) * gammaincc(order, -jnp.log(mass))


class Gaussian(NamedTuple):
    """A normal distribution given by mean and variance."""

    mean: Float[Array, "*batch"]
    variance: Float[Array, "*batch"]

    def quantile(self, level: Scalar) -> Float[Array, "*batch"]:
        return self.mean + jnp.sqrt(self.variance) * ndtri(level)

    def log_pdf(self, x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        return norm.logpdf(x, self.mean, jnp.sqrt(self.variance))

    def cvar(self, mass: Scalar) -> Float[Array, "*batch"]:
        return self.mean + jnp.sqrt(self.variance) * norm.pdf(ndtri(mass)) / mass


def rate(level: Scalar) -> Array:
    """c_u = -log(1 - u), the exponent at which a Weibull survival function equals 1 - u."""
    return -jnp.log1p(-jnp.asarray(level))


def scale_to_level(known: float, level: Scalar, shape: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """What a Weibull quantile at level `known` is multiplied by to give the one at `level`."""
    return (rate(level) / -math.log1p(-known)) ** (1 / shape)


def weibull_loss(
    tail: Weibull, quantiles: Float[Array, "*batch k"], levels: Float[Any, " k"]
) -> Float[Array, "*batch"]:
    """L(xi, zeta), eq. weibull_tail_loss: half the squared error of the tail's quantiles in log scale."""
    log_quantiles = jnp.log(tail.scale)[..., None] + jnp.log(rate(levels)) / tail.shape[..., None]
    return 0.5 * jnp.mean(jnp.square(log_quantiles - jnp.log(quantiles)), axis=-1)


def fit_weibull(quantiles: Float[Array, "*batch k"], levels: Float[Any, " k"]) -> Weibull:
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
    """log mu_u(s, a, s') of Theorem 1: p_s'((q - c) / gamma) / (gamma p_s(q)).

    The denominator belongs to s, as the theorem has it; the appendix prints the tail of s' in both places.
    """
    return next_tail.log_pdf((quantile - cost) / discount) - math.log(discount) - tail.log_pdf(quantile)


def clipped_weight(log_ratio: Float[Array, "*batch"], clip: float) -> Float[Array, "*batch"]:
    """1 + clip(log mu, -clip, clip), eq. probability_ratio_approx."""
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
