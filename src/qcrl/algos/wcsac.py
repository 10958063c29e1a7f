"""WCSAC: SAC with critics for mean and variance of the cost to go, constrained at the CVaR of the tail that has them.

With a Gaussian tail this is the algorithm that the paper compares with; with a Weibull tail it is `wcsac_weibull`.
"""

from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qcrl.algos.algorithm import Algorithm
from qcrl.algos.losses import value_loss
from qcrl.algos.presets import CHOSEN, SCALED
from qcrl.algos.sac import SAC, Params, SACActor
from qcrl.constraints import Constraint, CVaR, Unit
from qcrl.envs.base import Described
from qcrl.kinds import Settings
from qcrl.nets import soft
from qcrl.nets.network import Inputs, Memory
from qcrl.sampling.learner import Scalars
from qcrl.tails import Gaussian, Weibull

TAILS: dict[str, type[Gaussian] | type[Weibull]] = {"gaussian": Gaussian, "weibull": Weibull}
VARIANCE_RANGE = 1e-8, 1e8
Each = Float[Array, "*batch"]


@dataclass(frozen=True)
class WCSAC(SAC):
    """Maximise return subject to CVaR(episode cost) <= limit at the level `probability`, from a Gaussian tail."""

    name, label, trains_under, critic_count = "wcsac", "WCSAC", CVaR, 4

    tail: Literal["gaussian", "weibull"] = "gaussian"
    """Distribution that is given the critics' mean and variance, and whose CVaR is constrained."""
    damping: float = 10.0
    """How much the distance to the limit is taken off the safety weight in the policy's loss."""
    safety_learning_rate: float = 0.05
    """Adam's learning rate for the safety weight."""
    reward_costs: bool = True
    """Let the damped safety weight turn negative far below the limit, where it draws towards higher costs."""
    variance_loss: Literal["wasserstein", "squared"] = "wasserstein"
    """Distance of the variance critic and its sampled targets; only the squared one is least at their mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("be at least 0", lambda x: x >= 0, "damping", "safety_learning_rate")

    def discounted_limit(self, env: Described, limit: Float[Array, ""] | float) -> Float[Array, ""]:
        """What the limit on a whole episode is worth to critics that discount, if costs fall due evenly over time."""
        steps = jnp.arange(env.horizon)
        return limit * jnp.mean(self.discount**steps)

    def read_tail(self, values: Float[Array, "critic ..."], unit: Unit = 1.0) -> Gaussian | Weibull:
        """The distribution of the cost to go that the two safety critics describe, whose costs are in this unit."""
        mean, variance = moments(values)
        return TAILS[self.tail].from_moments(unit * mean, unit**2 * variance)

    def cost_losses(self, values: Array, next_values: Array, follows: Array, cost: Array) -> Scalars:
        mean, variance = moments(values)
        next_mean, next_variance = (follows * x for x in moments(next_values))
        target = variance_target(cost, jax.lax.stop_gradient(mean), next_mean, next_variance, self.discount)
        if self.variance_loss == "squared":
            variance_loss = value_loss(variance, target)
        else:
            variance_loss = jnp.mean(wasserstein(variance, jnp.clip(target, *VARIANCE_RANGE)))
        mean_loss = value_loss(mean, cost + self.discount * next_mean)
        return {"cost_mean_loss": mean_loss, "cost_variance_loss": variance_loss}

    def safety(
        self, env: Described, params: Params, values: Array, rated: Array, constraint: Constraint, unit: Unit = 1.0
    ) -> tuple[Scalars, Scalars]:
        assert isinstance(constraint, CVaR)
        weight, level = jax.nn.softplus(params["safety_weight"]), constraint.level
        cvar = jnp.mean(self.read_tail(values).cvar(level))
        slack = self.discounted_limit(env, constraint.limit) / unit - cvar
        damped = jax.lax.stop_gradient(weight) - self.damping * slack
        if not self.reward_costs:
            damped = jnp.maximum(damped, 0.0)
        losses = {
            "safety_loss": damped * jnp.mean(self.read_tail(rated).cvar(level)),
            "safety_weight_loss": weight * slack,
        }
        mean, variance = moments(values)
        figures = {"cvar": cvar, "cost_mean": jnp.mean(mean), "cost_std": jnp.mean(jnp.sqrt(variance))}
        return losses, {name: unit * figure for name, figure in figures.items()}

    def rates(self, learning_rate: Array) -> dict[str, Array | float]:
        return super().rates(learning_rate) | {"safety_weight": self.safety_learning_rate}

    def critic(self, env: Described, policy: SACActor, inputs: Inputs, memory: Memory) -> Gaussian | Weibull:
        """What the safety critics expect of the discounted cost to go, where the policy's likeliest action is taken."""
        action, _ = soft.act(policy.policy, inputs.obs, 0.0)
        unit = policy.cost_unit if self.cost_scale == "auto" else self.cost_scale
        return self.read_tail(soft.q_values(policy.critics, inputs.obs, action), unit)


@dataclass(frozen=True)
class WCSACWeibull(WCSAC):
    """Maximise return subject to CVaR(episode cost) <= limit at the level `probability`, from a Weibull tail."""

    name, label = "wcsac_weibull", "WCSAC-Weibull"

    tail: Literal["gaussian", "weibull"] = "weibull"
    """Distribution that is given the critics' mean and variance, and whose CVaR is constrained."""


def moments(values: Float[Array, "critic ..."]) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
    """Mean and variance of the cost to go, as the third and fourth critic have them."""
    return values[2], jnp.clip(jax.nn.softplus(values[3]), *VARIANCE_RANGE)


def variance_target(cost: Each, mean: Each, next_mean: Each, next_variance: Each, discount: float) -> Each:
    """A sample of Var[c + gamma X'] = E[(c + gamma m')^2 + gamma^2 v'] - m^2; by itself it may be negative."""
    return jnp.square(cost + discount * next_mean) + discount**2 * next_variance - jnp.square(mean)


def wasserstein(variance: Float[Array, "*batch"], target: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Squared 2-Wasserstein distance of two Gaussians with the same mean, v + v' - 2 sqrt(v v')."""
    return variance + target - 2 * jnp.sqrt(variance * target)


# Two CPU cores: a small network, and half as many gradient steps.
SMALL: Settings = dict(num_envs=8, steps_per_update=8, batch_size=64, replay_size=100_000, hidden_sizes=(64, 64))
# Environments that run in Python: what has proved itself for SAC on many tasks, one gradient step for every step.
HOST: Settings = dict(
    num_envs=4,
    steps_per_env=256,
    steps_per_update=1,
    learning_rate=3e-4,
    replay_size=300_000,
    start_steps=1000,
    **SCALED,
    **CHOSEN,
)


def _presets(paper: WCSAC) -> dict[str, Algorithm]:
    """The comparison's own settings, as far as they are known, are the released ones."""
    # Far below the limit the damping would draw the policy towards higher costs, whatever they bring.
    tuned = replace(paper, reward_costs=False)
    return {
        "paper": paper,
        "authors": paper,
        "tuned": tuned,
        "fast": replace(tuned, **SMALL),
        "host": replace(tuned, **HOST),
    }


WCSAC.presets = _presets(WCSAC())
WCSACWeibull.presets = _presets(WCSACWeibull())
WCSAC.lengths = WCSACWeibull.lengths = {"host": 100_000}
