"""QCPO: PPO whose cost head estimates the quantiles of the cost to go, constrained at its (1 - probability) quantile."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qcrl.algos.advantages import Links, gae
from qcrl.algos.losses import value_loss
from qcrl.algos.ppo import PPO, CostSignal
from qcrl.algos.quantile_advantage import CostDistribution, quantile_advantage
from qcrl.errors import UserError
from qcrl.quantiles import ascending, grid, quantile_huber_loss
from qcrl.tails import Weibull, weibull_loss


class Targets(NamedTuple):
    """What the quantile critic is trained on."""

    mean: Float[Array, "*batch"]
    samples: Float[Array, "*batch grid"]


@dataclass(frozen=True)
class QCPO(PPO):
    """Maximise return subject to Pr(episode cost > limit) <= probability, by its equivalent, a limit on the quantile."""

    driver: str = "quantile"
    """Statistic that drives the multiplier: quantile, outage or mean."""
    quantiles: int = 25
    """Number of quantiles that the critic estimates, n_q."""
    kappa: float = 1.0
    """Half-width of the quadratic part of the quantile Huber loss, in scaled costs; 0 is the exact quantile loss."""
    tail_quantiles: int = 8
    """How many of the highest quantiles the Weibull tail is fitted to, k."""
    weight_smoothing: Literal["clip", "standardise"] = "clip"
    """How the log density ratio becomes a weight: clipped, or first standardised over the batch."""
    weight_clip: float = 0.5
    """Bound on the log density ratio, c_clip."""
    quantile_loss_weight: float = 1.0
    """Weight of the quantile Huber loss."""
    tail_loss_weight: float = 1.0
    """Weight of the Weibull tail's loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        own = ("kappa", "weight_clip", "quantile_loss_weight", "tail_loss_weight")
        self._require("be at least 0", lambda x: x >= 0, *own)
        if not 2 <= self.tail_quantiles <= self.quantiles:
            raise UserError(
                f"tail_quantiles is {self.tail_quantiles}, but must be at least 2 and at most quantiles ({self.quantiles})"
            )

    @property
    def cost_outputs(self) -> int:
        return self.quantiles + 2

    def read_cost_head(self, outputs: Float[Array, "*batch outputs"]) -> CostDistribution:
        quantiles, shape, scale = jnp.split(outputs, [self.quantiles, self.quantiles + 1], axis=-1)
        tail = Weibull(4 * jax.nn.sigmoid(shape[..., 0]), jnp.exp(scale[..., 0]))
        return CostDistribution(jnp.exp(quantiles), tail)

    def unscale(self, estimate: CostDistribution) -> CostDistribution:
        return estimate.times(self.cost_scale)

    def cost_signal(
        self,
        cost: Float[Array, "time env"],
        estimate: CostDistribution,
        next_estimate: CostDistribution,
        links: Links,
        probability: Float[Array, ""],
    ) -> CostSignal:
        advantage, weight = quantile_advantage(
            cost,
            estimate,
            next_estimate,
            links,
            1 - probability,
            self.discount,
            self.cost_advantage_decay,
            self.weight_smoothing,
            self.weight_clip,
        )
        mean, next_mean = (jnp.mean(x.quantiles, axis=-1) for x in (estimate, next_estimate))
        returns = mean + gae(cost, mean, next_mean, links, self.discount, self.target_decay)
        samples = cost[..., None] + self.discount * jnp.where(links.terminal[..., None], 0.0, next_estimate.quantiles)
        statistics = {"weight_mean": jnp.mean(weight), "weight_std": jnp.std(weight)}
        return CostSignal(advantage, Targets(returns, samples), statistics)

    def cost_loss(self, estimate: CostDistribution, targets: Targets) -> tuple[Float[Array, ""], dict[str, Array]]:
        """L(psi) + L(xi, zeta): mean and quantiles of the critic, and the tail fitted to its highest quantiles."""
        highest = ascending(jax.lax.stop_gradient(estimate.quantiles))[..., -self.tail_quantiles :]
        losses = {
            "cost_mean_loss": value_loss(jnp.mean(estimate.quantiles, axis=-1), targets.mean),
            "quantile_loss": jnp.mean(quantile_huber_loss(estimate.quantiles, targets.samples, self.kappa)),
            "tail_loss": jnp.mean(weibull_loss(estimate.tail, highest, grid(self.quantiles)[-self.tail_quantiles :])),
        }
        total = (
            self.cost_mean_loss_weight * losses["cost_mean_loss"]
            + self.quantile_loss_weight * losses["quantile_loss"]
            + self.tail_loss_weight * losses["tail_loss"]
        )
        return total, losses
