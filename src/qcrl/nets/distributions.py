"""The policy's distribution over actions: Gaussian where the parameters have a `log_std`, else categorical.

A categorical action is one-hot, so that trajectories, networks and rollouts need not know which kind it is.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qcrl.nets.network import Params


def gaussian_log_prob(
    action: Float[Array, "*batch action"], mean: Float[Array, "*batch action"], log_std: Float[Array, " action"]
) -> Float[Array, "*batch"]:
    standard = (action - mean) * jnp.exp(-log_std)
    return -0.5 * jnp.sum(standard**2 + 2 * log_std + jnp.log(2 * jnp.pi), axis=-1)


def draw(
    params: Params, head: Float[Array, "*batch action"], noise: Float[Array, "*batch action"] | float
) -> Float[Array, "*batch action"]:
    """The action that standard normal `noise` leads to; the mode where the noise is 0."""
    if "log_std" in params:
        return head + jnp.exp(params["log_std"]) * noise
    # Normal noise turned into Gumbel noise, whose largest sum with the logits is a sample.
    gumbel = -jnp.log(-jax.scipy.special.log_ndtr(jnp.asarray(noise, jnp.float32)))
    return jax.nn.one_hot(jnp.argmax(head + gumbel, axis=-1), head.shape[-1])


def log_prob(
    params: Params, head: Float[Array, "*batch action"], action: Float[Array, "*batch action"]
) -> Float[Array, "*batch"]:
    if "log_std" in params:
        return gaussian_log_prob(action, head, params["log_std"])
    return jnp.sum(action * jax.nn.log_softmax(head), axis=-1)


def statistics(params: Params, head: Float[Array, "*batch action"]) -> dict[str, Float[Array, ""]]:
    """Entropy, and the spread of actions where they are numbers."""
    if "log_std" in params:
        return {
            "entropy": jnp.sum(params["log_std"] + 0.5 * jnp.log(2 * jnp.pi * jnp.e)),
            "action_std": jnp.mean(jnp.exp(params["log_std"])),
        }
    logs = jax.nn.log_softmax(head)
    return {"entropy": -jnp.mean(jnp.sum(jnp.exp(logs) * logs, axis=-1))}
