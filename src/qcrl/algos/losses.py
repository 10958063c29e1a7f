"""The losses that QCPO and PPO_Lag share (Appendices E.2 and E.3)."""

from collections.abc import Sequence
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float


def policy_loss(
    ratio: Float[Array, "*batch"],
    reward_advantage: Float[Array, "*batch"],
    cost_advantages: Sequence[Float[Array, "*batch"]],
    multipliers: Sequence[Float[Array, ""]],
    clip: float,
    clipping: Literal["joint", "separate"],
) -> Float[Array, ""]:
    """L(theta), (267) to (270): PPO's clipped surrogate of A_r - sum of lam A_c, clipped as one or one by one.

    There is a cost advantage and a multiplier for each constraint.
    """
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    if clipping == "joint":
        advantage = _weighed(reward_advantage, cost_advantages, multipliers)
        gain = jnp.minimum(ratio * advantage, clipped * advantage)
    else:
        gain = jnp.minimum(ratio * reward_advantage, clipped * reward_advantage)
        for multiplier, cost_advantage in zip(multipliers, cost_advantages):
            gain = gain - multiplier * jnp.maximum(ratio * cost_advantage, clipped * cost_advantage)
    return -jnp.mean(gain)


def normalised(
    reward_advantage: Float[Array, "*batch"],
    cost_advantages: Sequence[Float[Array, "*batch"]],
    multipliers: Sequence[Float[Array, ""]],
) -> Float[Array, "*batch"]:
    """A_r - sum of lam A_c with mean 0 and variance 1, so that steps are as long whatever the units of the task."""
    advantage = _weighed(reward_advantage, cost_advantages, multipliers)
    return (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)


def value_loss(value: Float[Array, "*batch"], target: Float[Array, "*batch"]) -> Float[Array, ""]:
    """L(phi), equation (254), and for a mean of quantiles L_value(psi), (255): half the mean squared error."""
    return 0.5 * jnp.mean(jnp.square(value - target))


def _weighed(advantage: Array, cost_advantages: Sequence[Array], multipliers: Sequence[Array]) -> Array:
    for multiplier, cost_advantage in zip(multipliers, cost_advantages):
        advantage = advantage - multiplier * cost_advantage
    return advantage
