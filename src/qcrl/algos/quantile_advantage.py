"""QCPO's advantage of the (1 - probability) quantile: the TD error of the quantile, weighted by the density ratio."""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from qcrl.algos.advantages import Links, gae
from qcrl.quantiles import ascending, at_level
from qcrl.tails import Weibull, clipped_weight, log_density_ratio, standardised_weight


class CostDistribution(NamedTuple):
    """The critic's view of the discounted cost to go."""

    quantiles: Float[Array, "*batch grid"]
    """At the levels of the grid; not necessarily ascending."""
    tail: Weibull

    def quantile(self, level: Float[Array, ""]) -> Float[Array, "*batch"]:
        return at_level(ascending(self.quantiles), level, self.tail.shape)

    def times(self, factor: Array | float) -> "CostDistribution":
        """The distribution of costs in other units."""
        return CostDistribution(factor * self.quantiles, Weibull(self.tail.shape, factor * self.tail.scale))


def quantile_advantage(
    cost: Float[Array, "time env"],
    distribution: CostDistribution,
    next_distribution: CostDistribution,
    links: Links,
    level: Float[Array, ""],
    discount: float,
    gae_lambda: float,
    smoothing: Literal["clip", "standardise"],
    clip: float,
) -> tuple[Float[Array, "time env"], Float[Array, "time env"]]:
    """Advantage of equation (275), and the weight in it; lambda 0 is the paper's text."""
    quantile, next_quantile = distribution.quantile(level), next_distribution.quantile(level)
    advantage = gae(cost, quantile, next_quantile, links, discount, gae_lambda)
    log_ratio = log_density_ratio(distribution.tail, next_distribution.tail, quantile, cost, discount)
    log_ratio = jnp.where(links.terminal, 0.0, log_ratio)
    if smoothing == "clip":
        weight = clipped_weight(log_ratio, clip)
    else:
        weight = standardised_weight(log_ratio, (quantile - cost) / discount, clip)
    # There is no s' after the last step.
    weight = jnp.where(links.terminal, 1.0, weight)
    return weight * advantage, weight
