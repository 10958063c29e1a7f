"""The losses that QCPO and PPO_Lag share (Appendices E.2 and E.3)."""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float


def policy_loss(
    ratio: Float[Array, "*batch"],
    reward_advantage: Float[Array, "*batch"],
    cost_advantage: Float[Array, "*batch"],
    multiplier: Float[Array, ""],
    clip: float,
    clipping: Literal["joint", "separate"],
) -> Float[Array, ""]:
    """L(theta): PPO's clipped surrogate of A_r - lam A_c, with the two advantages clipped as one or each on its own."""
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    if clipping == "joint":
        advantage = reward_advantage - multiplier * cost_advantage
        gain = jnp.minimum(ratio * advantage, clipped * advantage)
    else:
        reward = jnp.minimum(ratio * reward_advantage, clipped * reward_advantage)
        cost = jnp.maximum(ratio * cost_advantage, clipped * cost_advantage)
        gain = reward - multiplier * cost
    return -jnp.mean(gain)


def normalised(
    reward_advantage: Float[Array, "*batch"], cost_advantage: Float[Array, "*batch"], multiplier: Float[Array, ""]
) -> Float[Array, "*batch"]:
    """A_r - lam A_c with mean 0 and variance 1, so that steps are as long whatever the units of the task."""
    advantage = reward_advantage - multiplier * cost_advantage
    return (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)


def value_loss(value: Float[Array, "*batch"], target: Float[Array, "*batch"]) -> Float[Array, ""]:
    """L(phi), and L_value(psi) for a mean of quantiles: half the mean squared error."""
    return 0.5 * jnp.mean(jnp.square(value - target))
