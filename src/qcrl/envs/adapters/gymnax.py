"""Gymnax-style environments as functional ones: `reset(key, params)` and `step(key, state, action, params)`."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from qcrl.envs.adapters import functional
from qcrl.envs.adapters.functional import FunctionalCost, FunctionalCostFunction
from qcrl.envs.base import Step
from qcrl.envs.host.actions import Actions
from qcrl.errors import UserError
from qcrl.kinds import Tree


class State(NamedTuple):
    inner: Tree
    obs: Tree
    key: Array
    time: Int[Array, ""]


@dataclass(frozen=True, eq=False)
class GymnaxEnv:
    """Stepped by `step_env` where there is one, since `step` would begin the next episode by itself."""

    env: Any
    params: Tree = None
    """The environment's parameters; its defaults unless given."""
    horizon: int = 0
    """Episodes are cut off after so many steps; `params.max_steps_in_episode` unless given."""
    cost: FunctionalCost = None
    """Key of `info`, or cost_fn(obs, action, next_obs, info), or several by name; "cost" unless given."""

    fixed_length = False
    timed = True
    description = "a gymnax-style environment"

    def __post_init__(self) -> None:
        if self.params is None:
            object.__setattr__(self, "params", self.env.default_params)
        if not self.horizon:
            limit = getattr(self.params, "max_steps_in_episode", None)
            if limit is None:
                raise UserError(f"{self.id} states no max_steps_in_episode; give GymnaxEnv(env, horizon=...)")
            object.__setattr__(self, "horizon", int(limit))
        space = self.env.action_space(self.params)
        if not hasattr(space, "n") and not hasattr(space, "low"):
            raise UserError(f"the action space of {self.id} is {space}, but only Box and Discrete can be trained")
        functional.check_cost(self.sources, self.shapes[1], self.id)

    @property
    def id(self) -> str:
        return f"{getattr(self.env, 'name', type(self.env).__name__)}-gymnax"

    @cached_property
    def actions(self) -> Actions | None:
        space = self.env.action_space(self.params)
        return Actions(True) if hasattr(space, "n") else None

    @property
    def discrete(self) -> bool:
        return self.actions is not None

    @cached_property
    def action_size(self) -> int:
        space = self.env.action_space(self.params)
        return int(space.n) if self.discrete else math.prod(space.shape)

    @cached_property
    def shapes(self) -> tuple[Tree, Tree]:
        """Of the state after a reset, with its observation, and of the info of a step."""
        (obs, inner), info = jax.eval_shape(self._try, jax.random.key(0))
        return (inner, obs), info

    @cached_property
    def sources(self) -> dict[str, str | FunctionalCostFunction]:
        """Every cost with where it comes from."""
        return functional.named_costs(self.cost, self.shapes[1])

    @property
    def costs(self) -> tuple[str, ...]:
        return tuple(self.sources)

    def _try(self, key: Array) -> tuple[Tree, Tree]:
        obs, inner = self.env.reset(key, self.params)
        return (obs, inner), self._advance(key, inner, self._own(jnp.zeros(self.action_size)))[-1]

    @cached_property
    def observation_size(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self.shapes[0][1]))

    def reset(self, key: Array) -> tuple[State, Float[Array, " obs"]]:
        key, own = jax.random.split(key)
        obs, inner = self.env.reset(key, self.params)
        return State(inner, obs, jax.random.key_data(own), jnp.zeros((), jnp.int32)), functional.flat(obs)

    def step(self, state: State, action: Float[Array, " action"]) -> tuple[State, Step]:
        own = jax.random.wrap_key_data(state.key)
        own, key = jax.random.split(own)
        chosen = self._own(action)
        obs, inner, reward, done, *truncated, info = self._advance(key, state.inner, chosen)
        time = state.time + 1
        # A time limit inside the environment is `done` as well; it comes with the last step there can be.
        terminated = jnp.asarray(done).astype(bool).reshape(()) & (time < self.horizon)
        cut = (time >= self.horizon) | (jnp.asarray(truncated[0]).astype(bool) if truncated else False)
        step = Step(
            functional.flat(obs),
            jnp.asarray(reward, jnp.float32).reshape(()),
            functional.read_cost(self.sources, state.obs, chosen, obs, info),
            terminated,
            cut & ~terminated,
        )
        inner, obs = functional.like((inner, obs), self.shapes[0])
        return State(inner, obs, jax.random.key_data(own), time), step

    def _advance(self, key: Array, inner: Tree, action: Array) -> tuple[Tree, ...]:
        return getattr(self.env, "step_env", self.env.step)(key, inner, action, self.params)

    def _own(self, action: Float[Array, " action"]) -> Array:
        """The environment's action: the choice, or numbers in [-1, 1] mapped to its bounds."""
        if self.discrete:
            return jnp.argmax(action)
        space = self.env.action_space(self.params)
        low, high = (jnp.broadcast_to(jnp.asarray(x, jnp.float32), space.shape) for x in (space.low, space.high))
        mapped = low + (jnp.clip(action.reshape(space.shape), -1.0, 1.0) + 1) / 2 * (high - low)
        return jnp.where(jnp.isfinite(high - low), mapped, action.reshape(space.shape))
