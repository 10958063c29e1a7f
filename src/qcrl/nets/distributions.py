"""The policy's distribution over actions: Gaussian where the parameters have a `log_std`, else categorical, or both.

A categorical action is one-hot, so that trajectories, networks and rollouts need not know which kind it is. Where an
action has several parts it is a product: first all numbers, then a one-hot group for each of the `choices`.
"""

from itertools import groupby

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qcrl.nets.network import Params

Actions = Float[Array, "*batch action"]
Choices = tuple[int, ...]
"""How many options each choice has; empty where all is numbers, or one choice."""
FORBIDDEN = -1e8
"""The logit of a choice that is masked."""


def gaussian_log_prob(
    action: Actions, mean: Float[Array, "*batch action"], log_std: Float[Array, " action"]
) -> Float[Array, "*batch"]:
    standard = (action - mean) * jnp.exp(-log_std)
    return -0.5 * jnp.sum(standard**2 + 2 * log_std + jnp.log(2 * jnp.pi), axis=-1)


def draw(params: Params, head: Actions, noise: Actions | float, choices: Choices = ()) -> Actions:
    """The action that standard normal `noise` leads to; the mode where the noise is 0."""
    if choices:
        noises = split(jnp.broadcast_to(noise, head.shape), choices)
        numbers, *blocks = zip(split(head, choices), noises)
        drawn = [draw(params, *numbers)] if "log_std" in params else []
        return jnp.concatenate([*drawn, *(_flat(draw({}, *block)) for block in blocks)], axis=-1)
    if "log_std" in params:
        return head + jnp.exp(params["log_std"]) * noise
    # Normal noise turned into Gumbel noise, whose largest sum with the logits is a sample.
    gumbel = -jnp.log(-jax.scipy.special.log_ndtr(jnp.asarray(noise, jnp.float32)))
    return jax.nn.one_hot(jnp.argmax(head + gumbel, axis=-1), head.shape[-1])


def log_prob(params: Params, head: Actions, action: Actions, choices: Choices = ()) -> Float[Array, "*batch"]:
    if choices:
        numbers, *blocks = zip(split(head, choices), split(action, choices))
        logs = (jnp.sum(log_prob({}, *block), axis=-1) for block in blocks)
        return sum(logs, log_prob(params, *numbers) if "log_std" in params else jnp.zeros(()))
    if "log_std" in params:
        return gaussian_log_prob(action, head, params["log_std"])
    return jnp.sum(action * jax.nn.log_softmax(head), axis=-1)


def statistics(params: Params, head: Actions, choices: Choices = ()) -> dict[str, Float[Array, ""]]:
    """Entropy, and the spread of actions where they are numbers."""
    if choices:
        numbers, *blocks = split(head, choices)
        own = statistics(params, numbers) if "log_std" in params else {"entropy": jnp.zeros(())}
        each = (block.shape[-2] * statistics({}, block)["entropy"] for block in blocks)
        return own | {"entropy": sum(each, own["entropy"])}
    if "log_std" in params:
        return {
            "entropy": jnp.sum(params["log_std"] + 0.5 * jnp.log(2 * jnp.pi * jnp.e)),
            "action_std": jnp.mean(jnp.exp(params["log_std"])),
        }
    logs = jax.nn.log_softmax(head)
    return {"entropy": -jnp.mean(jnp.sum(jnp.exp(logs) * logs, axis=-1))}


def split(x: Actions, choices: Choices) -> list[Array]:
    """The numbers, then the choices, those of equal size in a row side by side: [..., choice, option]."""
    end = x.shape[-1] - sum(choices)
    blocks = [x[..., :end]]
    for options, run in groupby(choices):
        start, count = end, len(list(run))
        end = start + count * options
        blocks.append(x[..., start:end].reshape(*x.shape[:-1], count, options))
    return blocks


def _flat(block: Float[Array, "*batch choice option"]) -> Actions:
    return block.reshape(*block.shape[:-2], -1)


def forbid(head: Actions, mask: Float[Array, "*batch option"] | None) -> Actions:
    """Logits with those options out of reach whose mask is 0; a mask is as long as all choices together."""
    if mask is None:
        return head
    numbers = head.shape[-1] - mask.shape[-1]
    return jnp.concatenate([head[..., :numbers], jnp.where(mask > 0, head[..., numbers:], FORBIDDEN)], axis=-1)
