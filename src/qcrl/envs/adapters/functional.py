"""What the adapters for other people's JAX environments share: costs, flat observations, steady types."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from qcrl.envs.host.costs import HOW_TO, Info
from qcrl.errors import UserError
from qcrl.kinds import Tree

FunctionalCost = str | Callable[[Tree, Tree, Tree, Info], ArrayLike] | None
"""A key of info, or cost_fn(obs, action, next_obs, info) of JAX arrays; without it the key is "cost"."""


def read_cost(cost: FunctionalCost, obs: Tree, action: Array, next_obs: Tree, info: Info) -> Float[Array, ""]:
    """The cost of a step. A negative one becomes NaN, at which training stops: compiled code cannot raise an error."""
    value = cost(obs, action, next_obs, info) if callable(cost) else info["cost" if cost is None else cost]
    value = jnp.asarray(value, jnp.float32).reshape(())
    return jnp.where(value >= 0, value, jnp.nan)


def check_cost(cost: FunctionalCost, info: Info, name: str) -> None:
    """A cost that is not there is an error before training."""
    key = "cost" if cost is None else cost
    if not callable(key) and key not in info:
        raise UserError(
            f"{name} reports no cost: info has no {key!r} (it has: {', '.join(info) or 'nothing'}); {HOW_TO}"
        )


def flat(obs: Tree) -> Float[Array, " obs"]:
    return ravel_pytree(obs)[0].astype(jnp.float32)


def like(tree: Tree, example: Tree) -> Tree:
    """The same numbers in the types of `example`: a compiled loop needs them to stay."""
    return jax.tree.map(lambda x, shape: jnp.asarray(x).astype(shape.dtype).reshape(shape.shape), tree, example)
