"""Functions of one environment's numbers that an accelerator computes for a whole batch in a single launch."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from qcrl.kinds import Tree

P = ParamSpec("P")
R = TypeVar("R")
MOST_PER_BLOCK = 64


def in_one_launch(function: Callable[P, R]) -> Callable[P, R]:
    """`function` of trees of scalars. Under vmap it becomes one kernel, loops and all, where a GPU can have that.

    XLA makes every turn of a loop a launch of its own, or unrolls it and takes long to compile.
    """
    call = custom_vmap(function)

    @call.def_vmap
    def batched(size: int, is_batched: Tree, *args: Tree) -> tuple[Tree, Tree]:
        spread = lambda x, has: x if has else jnp.broadcast_to(x, (size, *jnp.shape(x)))
        args = jax.tree.map(spread, args, tuple(is_batched))
        run: Callable[..., Tree] = _launch(function) if jax.default_backend() == "gpu" else jax.vmap(function)
        result = run(*args)
        return result, jax.tree.map(lambda _: True, result)

    return call


def _launch(function: Callable[..., Tree], interpret: bool = False) -> Callable[..., Tree]:
    """`function` on vectors, as a kernel whose programs each take a block of them."""
    from jax.experimental import pallas
    from jax.experimental.pallas import triton

    def run(*args: Tree) -> Tree:
        leaves, structure = jax.tree.flatten(args)
        scalars = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), args)
        outputs, result = jax.tree.flatten(jax.eval_shape(function, *scalars))
        size = leaves[0].shape[0]
        block = min(MOST_PER_BLOCK, size & -size)  # a power of two that divides it

        def kernel(*refs: Array) -> None:
            given = [ref[...] for ref in refs[: len(leaves)]]
            for ref, value in zip(
                refs[len(leaves) :], jax.tree.leaves(function(*jax.tree.unflatten(structure, given)))
            ):
                ref[...] = value

        spec = pallas.BlockSpec((block,), lambda number: (number,))
        found = pallas.pallas_call(
            kernel,
            grid=(size // block,),
            in_specs=[spec] * len(leaves),
            out_specs=[spec] * len(outputs),
            out_shape=[jax.ShapeDtypeStruct((size,), each.dtype) for each in outputs],
            compiler_params=triton.CompilerParams(num_warps=max(1, block // 32)),
            interpret=interpret,
        )(*leaves)
        return jax.tree.unflatten(result, found)

    return run
