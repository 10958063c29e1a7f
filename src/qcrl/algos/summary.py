"""What every algorithm reports of its recent episodes, and how a lane that broke is kept as it was."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from qcrl.quantiles import empirical_quantile


def summary(state: Any, episodes: int) -> dict[str, Float[Array, ""]]:
    """Return and costs over the most recent `episodes`; NaN before the first has finished."""
    window, valid = state.window, state.window.recent(episodes)
    return {
        "iteration": state.iteration,
        "env_steps": state.env_steps,
        "episode_return": jnp.mean(window.return_, where=valid),
        "episode_cost": jnp.mean(window.cost, where=valid),
        "cost_quantile": empirical_quantile(window.cost, valid, 1 - state.probability),
        "outage": jnp.mean(window.cost > state.limit, where=valid),
        "multiplier": state.multiplier,
        "alive": state.alive,
    }


def all_finite(tree: Any) -> Bool[Array, ""]:
    return jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]).all()


def choose(condition: Bool[Array, ""], new: Any, old: Any) -> Any:
    """One of two trees, leaf by leaf."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)
