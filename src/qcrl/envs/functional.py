"""What the adapters for other people's JAX environments share: costs, flat observations, steady types."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from qcrl.envs.costs import HOW_TO
from qcrl.errors import UserError

FunctionalCost = str | Callable[[Any, Any, Any, dict[str, Any]], Any] | None
"""A key of info, or cost_fn(obs, action, next_obs, info) of JAX arrays; without it the key is "cost"."""


def read_cost(cost: FunctionalCost, obs: Any, action: Any, next_obs: Any, info: dict[str, Any]) -> Float[Array, ""]:
    """The cost of a step. A negative one turns into NaN, at which training stops: compiled code cannot raise an error."""
    value = cost(obs, action, next_obs, info) if callable(cost) else info["cost" if cost is None else cost]
    value = jnp.asarray(value, jnp.float32).reshape(())
    return jnp.where(value >= 0, value, jnp.nan)


def check_cost(cost: FunctionalCost, info: dict[str, Any], name: str) -> None:
    """A cost that is not there is an error before training."""
    key = "cost" if cost is None else cost
    if not callable(key) and key not in info:
        raise UserError(
            f"{name} reports no cost: info has no {key!r} (it has: {', '.join(info) or 'nothing'}); {HOW_TO}"
        )


def flat(obs: Any) -> Float[Array, " obs"]:
    return ravel_pytree(obs)[0].astype(jnp.float32)


def like(tree: Any, example: Any) -> Any:
    """The same numbers in the types of `example`: a compiled loop needs them to stay."""
    return jax.tree.map(lambda x, shape: jnp.asarray(x).astype(shape.dtype).reshape(shape.shape), tree, example)
