"""The networks of SAC: a squashed Gaussian policy, and several critics that are evaluated as one."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Layers = list[dict[str, Array]]
LOG_STD_RANGE = -20.0, 2.0


def init_layers(key: Array, sizes: Sequence[int], copies: int) -> Layers:
    """Kernels uniform within 1 / sqrt(fan in), and biases of 0. `apply` says how the copies lie side by side."""
    pairs = list(pairwise(sizes))
    # All kernels from one draw: every call of the generator takes XLA most of a second to compile.
    ends = np.cumsum([copies * rows * columns for rows, columns in pairs])
    drawn = jnp.split(jax.random.uniform(key, (int(ends[-1]),), minval=-1.0), ends[:-1])
    shapes = [(pairs[0][0], copies, pairs[0][1]), *((copies, *pair) for pair in pairs[1:])]
    return [
        {"kernel": values.reshape(shape) / rows**0.5, "bias": jnp.zeros((copies, columns))}
        for values, shape, (rows, columns) in zip(drawn, shapes, pairs)
    ]


def apply(layers: Layers, x: Float[Array, "*batch input"]) -> Float[Array, "copy *batch output"]:
    """All copies of a ReLU network on the same input.

    The first kernel is [input, copy, output], so that one product serves all copies; others are [copy, input, output].
    Everything before the last product is of the kernels' type; the result is float32.
    """
    x = x.astype(layers[0]["kernel"].dtype)
    out: Any = jnp.einsum("...i,ico->c...o", x, layers[0]["kernel"]) + _over_batch(layers[0]["bias"], x.ndim)
    for layer in layers[1:-1]:
        out = jnp.einsum("c...i,cio->c...o", jax.nn.relu(out), layer["kernel"]) + _over_batch(layer["bias"], x.ndim)
    last = layers[-1]
    out = jnp.einsum("c...i,cio->c...o", jax.nn.relu(out), last["kernel"], preferred_element_type=jnp.float32)
    return out + _over_batch(last["bias"].astype(jnp.float32), x.ndim)


def _over_batch(bias: Float[Array, "copy output"], ndim: int) -> Array:
    return bias.reshape(bias.shape[0], *(1,) * (ndim - 1), bias.shape[1])


def act(
    policy: Layers, obs: Float[Array, "*batch obs"], noise: Float[Array, "*batch action"] | float
) -> tuple[Float[Array, "*batch action"], Float[Array, "*batch"]]:
    """The action that standard normal `noise` leads to, within (-1, 1), and the logarithm of its density."""
    mean, log_std = jnp.split(apply(policy, obs)[0], 2, axis=-1)
    log_std = jnp.clip(log_std, *LOG_STD_RANGE)
    raw = mean + jnp.exp(log_std) * noise
    gaussian = -0.5 * jnp.square(noise) - log_std - 0.5 * jnp.log(2 * jnp.pi)
    squash = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))  # log of the derivative of tanh, without underflow
    return jnp.tanh(raw), jnp.sum(gaussian - squash, axis=-1)


def q_values(
    critics: Layers, obs: Float[Array, "*batch obs"], action: Float[Array, "*batch action"]
) -> Float[Array, "critic ..."]:
    """Q values: what each critic says about taking the action."""
    return apply(critics, jnp.concatenate([obs, action], axis=-1))[..., 0]
