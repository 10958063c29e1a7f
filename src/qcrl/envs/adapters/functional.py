"""What the adapters for other people's JAX environments share: costs, flat observations, steady types."""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from qcrl.envs.host.costs import HOW_TO, Info
from qcrl.errors import UserError
from qcrl.kinds import Tree

FunctionalCostFunction = Callable[[Tree, Tree, Tree, Info], ArrayLike]
"""cost_fn(obs, action, next_obs, info) of JAX arrays."""
FunctionalCost = str | FunctionalCostFunction | Mapping[str, str | FunctionalCostFunction] | Sequence[str] | None
"""A key of info, or a function; several of them by name, or several keys. Without it the key is "cost"."""


def named_costs(cost: FunctionalCost, info: Info) -> dict[str, str | FunctionalCostFunction]:
    """Every cost with where it comes from; info["cost"] may hold several, by name or in a row."""
    if isinstance(cost, Mapping):
        return dict(cost)
    if cost is not None and not isinstance(cost, str) and not callable(cost):
        return {key: key for key in cost}
    found: Tree = info.get(cost or "cost", 0.0) if not callable(cost) else 0.0
    if isinstance(found, Mapping):
        return {name: lambda *step, name=name: step[-1][cost or "cost"][name] for name in found}
    if jnp.ndim(found) == 1:
        return {f"cost_{i}": lambda *step, i=i: step[-1][cost or "cost"][i] for i in range(len(found))}
    return {"cost": "cost" if cost is None else cost}


def read_cost(
    costs: Mapping[str, str | FunctionalCostFunction], obs: Tree, action: Array, next_obs: Tree, info: Info
) -> Float[Array, "*cost"]:
    """The costs of a step. A negative one becomes NaN, at which training stops: compiled code cannot raise an error."""
    read = [cost(obs, action, next_obs, info) if callable(cost) else info[cost] for cost in costs.values()]
    values = [jnp.asarray(value, jnp.float32).reshape(()) for value in read]
    together = values[0] if len(values) == 1 else jnp.stack(values)
    return jnp.where(together >= 0, together, jnp.nan)


def check_cost(costs: Mapping[str, str | FunctionalCostFunction], info: Info, name: str) -> None:
    """A cost that is not there is an error before training."""
    for key in costs.values():
        if not callable(key) and key not in info:
            raise UserError(
                f"{name} reports no cost: info has no {key!r} (it has: {', '.join(info) or 'nothing'}); {HOW_TO}"
            )


def flat(obs: Tree) -> Float[Array, " obs"]:
    return ravel_pytree(obs)[0].astype(jnp.float32)


def like(tree: Tree, example: Tree) -> Tree:
    """The same numbers in the types of `example`: a compiled loop needs them to stay."""
    return jax.tree.map(lambda x, shape: jnp.asarray(x).astype(shape.dtype).reshape(shape.shape), tree, example)
