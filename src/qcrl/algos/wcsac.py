"""WCSAC: SAC with critics for mean and variance of the cost to go, constrained at the CVaR of the tail that has them.

With a Gaussian tail this is the algorithm that the paper compares with; with a Weibull tail it is `wcsac_weibull`.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qcrl.algos import soft_networks
from qcrl.algos.losses import value_loss
from qcrl.algos.sac import SAC, Params, Scalars, SoftPolicy, Transition
from qcrl.envs.base import Environment
from qcrl.errors import UserError
from qcrl.networks import Memory
from qcrl.tails import Gaussian, Weibull

TAILS: dict[str, Any] = {"gaussian": Gaussian, "weibull": Weibull}
VARIANCE_RANGE = 1e-8, 1e8


@dataclass(frozen=True)
class WCSAC(SAC):
    """Maximise return subject to CVaR(episode cost) <= limit at the level `probability`, from a Gaussian tail."""

    tail: Literal["gaussian", "weibull"] = "gaussian"
    """Distribution that is given the critics' mean and variance, and whose CVaR is constrained."""
    damping: float = 10.0
    """How much the distance to the limit is taken off the safety weight in the policy's loss."""
    safety_learning_rate: float = 0.05
    """Adam's learning rate for the safety weight."""
    reward_costs: bool = True
    """Let the damped safety weight turn negative far below the limit, where it draws the policy towards higher costs."""
    variance_loss: Literal["wasserstein", "squared"] = "wasserstein"
    """Distance of the variance critic and its sampled targets; only the squared one is least at their mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("damping", "safety_learning_rate"):
            if not getattr(self, name) >= 0:
                raise UserError(f"{name} is {getattr(self, name)}, but must be at least 0")

    @property
    def critic_count(self) -> int:
        return 4

    def discounted_limit(self, env: Environment, limit: Float[Array, ""]) -> Float[Array, ""]:
        """What the limit on a whole episode is worth to critics that discount, if costs fall due evenly over time."""
        steps = jnp.arange(env.horizon)
        return limit * jnp.mean(self.discount**steps)

    def read_tail(self, values: Float[Array, "critic ..."]) -> Any:
        """The distribution of the cost to go that the two safety critics describe."""
        return TAILS[self.tail].from_moments(*moments(values))

    def cost_losses(self, values: Array, next_values: Array, batch: Transition) -> Scalars:
        mean, variance = moments(values)
        next_mean, next_variance = (batch.follows * x for x in moments(next_values))
        target = variance_target(batch.cost, jax.lax.stop_gradient(mean), next_mean, next_variance, self.discount)
        if self.variance_loss == "squared":
            variance_loss = value_loss(variance, target)
        else:
            variance_loss = jnp.mean(wasserstein(variance, jnp.clip(target, *VARIANCE_RANGE)))
        mean_loss = value_loss(mean, batch.cost + self.discount * next_mean)
        return {"cost_mean_loss": mean_loss, "cost_variance_loss": variance_loss}

    def safety(
        self, env: Environment, params: Params, values: Array, rated: Array, limit: Array, probability: Array
    ) -> tuple[Scalars, Scalars]:
        weight = jax.nn.softplus(params["safety_weight"])
        cvar = jnp.mean(self.read_tail(values).cvar(probability))
        slack = self.discounted_limit(env, limit) - cvar
        damped = jax.lax.stop_gradient(weight) - self.damping * slack
        if not self.reward_costs:
            damped = jnp.maximum(damped, 0.0)
        losses = {
            "safety_loss": damped * jnp.mean(self.read_tail(rated).cvar(probability)),
            "safety_weight_loss": weight * slack,
        }
        mean, variance = moments(values)
        return losses, {"cvar": cvar, "cost_mean": jnp.mean(mean), "cost_std": jnp.mean(jnp.sqrt(variance))}

    def rates(self, learning_rate: Array) -> dict[str, Array | float]:
        return super().rates(learning_rate) | {"safety_weight": self.safety_learning_rate}

    def critic(
        self,
        env: Environment,
        policy: SoftPolicy,
        carry: Memory,
        obs: Float[Array, "*batch obs"],
        previous_action: Float[Array, "*batch action"],
        previous_reward: Float[Array, "*batch"],
        previous_cost: Float[Array, "*batch"],
    ) -> Any:
        """What the safety critics expect of the discounted cost to go, where the policy's likeliest action is taken."""
        action, _ = soft_networks.act(policy.policy, obs, 0.0)
        return self.read_tail(soft_networks.rate(policy.critics, obs, action))


@dataclass(frozen=True)
class WCSACWeibull(WCSAC):
    """Maximise return subject to CVaR(episode cost) <= limit at the level `probability`, from a Weibull tail."""

    tail: Literal["gaussian", "weibull"] = "weibull"
    """Distribution that is given the critics' mean and variance, and whose CVaR is constrained."""


def moments(values: Float[Array, "critic ..."]) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
    """Mean and variance of the cost to go, as the third and fourth critic have them."""
    return values[2], jnp.clip(jax.nn.softplus(values[3]), *VARIANCE_RANGE)


def variance_target(
    cost: Float[Array, "*batch"],
    mean: Float[Array, "*batch"],
    next_mean: Float[Array, "*batch"],
    next_variance: Float[Array, "*batch"],
    discount: float,
) -> Float[Array, "*batch"]:
    """A sample of Var[c + gamma X'] = E[(c + gamma m')^2 + gamma^2 v'] - m^2; by itself it may be negative."""
    return jnp.square(cost + discount * next_mean) + discount**2 * next_variance - jnp.square(mean)


def wasserstein(variance: Float[Array, "*batch"], target: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Squared 2-Wasserstein distance of two Gaussians with the same mean, v + v' - 2 sqrt(v v')."""
    return variance + target - 2 * jnp.sqrt(variance * target)
