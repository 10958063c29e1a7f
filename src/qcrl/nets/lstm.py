"""An LSTM layer: one step for acting, and a whole sequence with a hand-written backward pass for learning.

One kernel holds the rows for the input and below them those for the previous output. Gates: in, forget, new, out.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from qcrl.kinds import Tree


class Memory(NamedTuple):
    """The state that is carried from step to step: output and cell."""

    hidden: Tree
    cell: Tree


def _unroll() -> int:
    """Several steps per turn of the loop spare an accelerator launches; on a CPU they only lengthen compilation."""
    return 1 if jax.default_backend() == "cpu" else 10


def matmul(x: Float[Array, "*batch i"], kernel: Float[Array, "i o"]) -> Float[Array, "*batch o"]:
    """A product in the kernel's type, accumulated and returned in float32."""
    return jnp.matmul(x.astype(kernel.dtype), kernel, preferred_element_type=jnp.float32)


def step(params: dict[str, Array], x: Float[Array, "*batch input"], memory: Memory) -> Memory:
    raw = matmul(jnp.concatenate([x, memory.hidden], axis=-1), params["kernel"]) + params["bias"]
    return _activate(raw, memory.cell)[0]


def forget(memory: Memory, first: Bool[Array, "*batch"]) -> Memory:
    """The memory, emptied where an episode begins."""
    return jax.tree.map(lambda x: jnp.where(first[..., None], 0.0, x), memory)


def _activate(raw: Float[Array, "*batch gates"], cell: Array) -> tuple[Memory, Array]:
    i, f, g, o = jnp.split(raw, 4, axis=-1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cell = f * cell + i * g
    return Memory(o * jnp.tanh(cell), cell), jnp.concatenate([i, f, g, o], axis=-1)


# The backward pass is written out because autodiff adds up the recurrent rows' gradient step by step; here it is one
# product over all steps.
@jax.custom_vjp
def sequence(
    params: dict[str, Array],
    x: Float[Array, "time batch input"],
    first: Bool[Array, "time batch"],
    start: Memory,
) -> Memory:
    """The memory after every step. It is emptied before each step that is the `first` of an episode.

    Gradients flow through the outputs; not into `start`, nor from the cells.
    """
    return _forward(params, x, first, start)[0]


def _forward(params: dict[str, Array], x: Array, first: Array, start: Memory) -> tuple[Memory, Tree]:
    kernel, size = params["kernel"], x.shape[-1]
    recurrent = kernel[size:]

    def advance(memory: Memory, step: tuple[Array, Array]) -> tuple[Memory, tuple[Memory, Array]]:
        projected, first = step
        memory = forget(memory, first)
        memory, gates = _activate(projected + matmul(memory.hidden, recurrent) + params["bias"], memory.cell)
        return memory, (memory, gates)

    projected = matmul(x, kernel[:size])
    _, (memories, gates) = jax.lax.scan(advance, start, (projected, first), unroll=_unroll())
    return memories, (params, x, first, start, memories, gates)


def _backward(saved: Tree, cotangents: Memory) -> tuple[dict[str, Array], Array, None, Memory]:
    params, x, first, start, memories, gates = saved
    kernel, size = params["kernel"], x.shape[-1]
    before = forget(jax.tree.map(lambda x, x0: jnp.concatenate([x0[None], x[:-1]]), memories, start), first)
    # Else XLA transposes it anew in every step.
    recurrent = jax.lax.optimization_barrier(kernel[size:].T)

    def retreat(later: Memory, step: tuple[Array, ...]) -> tuple[Memory, Array]:
        d_hidden, gates, cell, cell_before, first = step
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        squashed = jnp.tanh(cell)
        d_hidden = d_hidden + later.hidden
        d_cell = later.cell + d_hidden * o * (1 - squashed**2)
        d_in = d_cell * g * i * (1 - i)
        d_forget = d_cell * cell_before * f * (1 - f)
        d_new = d_cell * i * (1 - g**2)
        d_out = d_hidden * squashed * o * (1 - o)
        d_raw = jnp.concatenate([d_in, d_forget, d_new, d_out], axis=-1)
        return forget(Memory(matmul(d_raw, recurrent), d_cell * f), first), d_raw

    nothing = jax.tree.map(jnp.zeros_like, start)
    steps = (cotangents.hidden, gates, memories.cell, before.cell, first)
    _, d_raw = jax.lax.scan(retreat, nothing, steps, reverse=True, unroll=_unroll())
    flat = d_raw.reshape(-1, d_raw.shape[-1]).astype(kernel.dtype)
    d_kernel = [matmul(rows.reshape(-1, rows.shape[-1]).T, flat) for rows in (x, before.hidden)]
    d_params = {"kernel": jnp.concatenate(d_kernel).astype(kernel.dtype), "bias": jnp.sum(d_raw, axis=(0, 1))}
    return d_params, matmul(d_raw, kernel[:size].T).astype(x.dtype), None, nothing


sequence.defvjp(_forward, _backward)
