"""QCPO: PPO whose cost head estimates quantiles of the cost to go, constrained at the (1 - probability) one."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qcrl.algos.advantages import gae
from qcrl.algos.batch import CostSignal, Sampled
from qcrl.algos.losses import value_loss
from qcrl.algos.ppo import PPO
from qcrl.algos.ppo_lag import PPOLag
from qcrl.algos.presets import AS_RELEASED, HOST, SCALE, SCALE_STEPS, SMALL, TUNED
from qcrl.algos.quantile_advantage import CostDistribution, quantile_advantage
from qcrl.constraints import Constraint, Mean, Outage, Unit
from qcrl.envs.base import Described
from qcrl.errors import UserError
from qcrl.kinds import Settings
from qcrl.quantiles import ascending, grid, quantile_huber_loss
from qcrl.sampling.learner import Scalars
from qcrl.sampling.record import State
from qcrl.tails import Weibull, weibull_loss


class Targets(NamedTuple):
    """What the quantile critic is trained on."""

    mean: Float[Array, "*batch"]
    samples: Float[Array, "*batch grid"]


@dataclass(frozen=True)
class QCPO(PPO):
    """Maximise return subject to Pr(episode cost > limit) <= probability, as a limit on the quantile."""

    name, label, trains_under, also_under, several = "qcpo", "QCPO", Outage, (Mean,), True

    driver: Literal["quantile", "outage"] = "quantile"
    """Statistic of the constraint that drives the multiplier: the cost's quantile or the counted outage."""
    cost_mean_loss_weight: float = 1.0
    """Weight of the loss of the mean cost estimate."""
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
        own = ("kappa", "weight_clip", "cost_mean_loss_weight", "quantile_loss_weight", "tail_loss_weight")
        self.require("be at least 0", lambda x: x >= 0, *own)
        self.require("be greater than 0", lambda x: x > 0, "discount")
        if not 2 <= self.tail_quantiles <= self.quantiles:
            raise UserError(
                f"tail_quantiles is {self.tail_quantiles}, but must be at least 2 and at most quantiles "
                f"({self.quantiles})"
            )

    def critic_of(self, constraint: Constraint) -> PPO:
        """A mean is served as by PPO_Lag."""
        return PPOLag.like(self) if isinstance(constraint, Mean) else self

    @property
    def cost_outputs(self) -> int:
        return self.quantiles + 2

    def read_cost_head(self, outputs: Float[Array, "*batch outputs"]) -> CostDistribution:
        quantiles, shape, scale = jnp.split(outputs, [self.quantiles, self.quantiles + 1], axis=-1)
        tail = Weibull(4 * jax.nn.sigmoid(shape[..., 0]), jnp.exp(scale[..., 0]))
        return CostDistribution(jnp.exp(quantiles), tail)

    def unscale(self, estimate: CostDistribution, unit: Unit) -> CostDistribution:
        return estimate.times(unit)

    @property
    def steers_by(self) -> str:
        return self.driver

    def cost_signal(self, env: Described, state: State, sampled: Sampled) -> CostSignal:
        trajectory, now, later, links = sampled
        cost = self.scaled_cost(env, state, trajectory)
        advantage, weight = quantile_advantage(
            cost,
            now,
            later,
            links,
            1 - state.probability,
            self.discount,
            self.cost_gae_lambda,
            self.weight_smoothing,
            self.weight_clip,
        )
        mean, next_mean = (jnp.mean(x.quantiles, axis=-1) for x in (now, later))
        returns = mean + gae(cost, mean, next_mean, links, self.discount, self.cost_target_lambda)
        samples = cost[..., None] + self.discount * jnp.where(links.terminal[..., None], 0.0, later.quantiles)
        statistics = {"weight_mean": jnp.mean(weight), "weight_std": jnp.std(weight)}
        return CostSignal(advantage, Targets(returns, samples), statistics)

    def cost_loss(self, estimate: CostDistribution, targets: Targets) -> tuple[Float[Array, ""], Scalars]:
        """(256) and (257): mean and quantiles of the critic, and the tail fitted to its highest quantiles."""
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


paper = QCPO()
authors = replace(paper, **AS_RELEASED, cost_mean_loss_weight=0.5, weight_smoothing="standardise")
# The outage error is bounded, so the multiplier cannot wind up while costs are still high.
tuned = replace(authors, **TUNED, driver="outage", integral_gain=0.25, proportional_gain=3.0, error_clip=0.1)
scale = replace(tuned, **SCALE)
# One-step quantile advantages, as in the paper's text: a sum over later steps brings back the mean of the costs, and on
# TwoPathEnv with it the wrong route.
fast = replace(authors, **SMALL, driver="outage", integral_gain=0.5, error_clip=0.1, cost_gae_lambda=0.0, kappa=0.1)
# The error is a share of episodes here, not a multiple of the probability.
SHARES: Settings = dict(integral_gain=1.0, proportional_gain=3.0, error_clip=0.1, cost_gae_lambda=0.0)
host = QCPO(**HOST | SHARES, driver="outage", weight_smoothing="standardise", kappa=0.1)
QCPO.presets = {"paper": paper, "authors": authors, "tuned": tuned, "fast": fast, "scale": scale, "host": host}
QCPO.lengths = dict.fromkeys(("paper", "authors", "tuned"), 5_000_000) | {"scale": SCALE_STEPS}
