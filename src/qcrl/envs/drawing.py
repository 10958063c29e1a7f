"""Episodes that each draw what is asked of them: a position in the ranges of limit and probability."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qcrl.envs.base import Environment, Step
from qcrl.kinds import Tree

DRAWN = 2
"""Numbers that are drawn: where in its range the limit lies, and where the probability, from 0 to 1."""


class Drawn(NamedTuple):
    inner: Tree
    position: Float[Array, "2"]


@dataclass(frozen=True)
class Drawing:
    """An environment in all but this: its state holds what the episode has drawn. It does not know the ranges."""

    env: Environment
    draws = True

    def __getattr__(self, name: str) -> Tree:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, key: Array) -> tuple[Drawn, Float[Array, " obs"]]:
        inner, obs = self.env.reset(key)
        return Drawn(inner, jax.random.uniform(jax.random.fold_in(key, 1), (DRAWN,))), obs

    def step(self, state: Drawn, action: Float[Array, " action"]) -> tuple[Drawn, Step]:
        inner, step = self.env.step(state.inner, action)
        return Drawn(inner, state.position), step


def drawing(env: Environment) -> Environment:
    """The environment with episodes that draw. Those in Python draw where they are stepped."""
    return env.drawing() if hasattr(env, "drawing") else Drawing(env)  # type: ignore[return-value]


def drawn(env: object, env_state: Tree) -> Tree:
    """What was drawn; nothing in environments that do not."""
    if isinstance(env_state, Drawn):
        return env_state.position
    return jnp.zeros((*env_state.shape, DRAWN)) if getattr(env, "draws", False) else ()
