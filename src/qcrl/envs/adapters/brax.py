"""Brax-style environments as functional ones: `reset(rng)` and `step(state, action)` return one state with it all."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from qcrl.envs.adapters import functional
from qcrl.envs.adapters.functional import FunctionalCost, FunctionalCostFunction
from qcrl.envs.base import Step
from qcrl.errors import UserError
from qcrl.kinds import Tree


class State(NamedTuple):
    inner: Tree
    time: Int[Array, ""]


@dataclass(frozen=True, eq=False)
class BraxEnv:
    """Episodes end when the environment is done or after `horizon` steps. Actions are clipped to [-1, 1]."""

    env: Any
    """Of one robot, and without automatic reset: `brax.envs.get_environment(name)`."""
    horizon: int = 1000
    cost: FunctionalCost = None
    """Key of `state.info`, or cost_fn(obs, action, next_obs, info), or several by name; "cost" unless given."""

    fixed_length = False
    discrete = False
    timed = True
    description = "a Brax-style environment"

    def __post_init__(self) -> None:
        start, after = self.shapes
        if {"first_obs", "first_pipeline_state", "first_state"} & set(start.info):
            raise UserError(f"{self.id} resets itself; make it without, in Brax with auto_reset=False")
        if jnp.ndim(start.reward):
            raise UserError(f"{self.id} holds a batch of shape {start.reward.shape}; give the environment of one robot")
        functional.check_cost(self.sources, after.info, self.id)

    @property
    def id(self) -> str:
        return f"{type(getattr(self.env, 'unwrapped', self.env)).__name__}-brax"

    @cached_property
    def shapes(self) -> tuple[Tree, Tree]:
        """Of the states after a reset and after a step."""
        start = jax.eval_shape(self.env.reset, jax.random.key(0))
        return start, jax.eval_shape(self.env.step, start, jax.ShapeDtypeStruct((self.action_size,), jnp.float32))

    @cached_property
    def sources(self) -> dict[str, str | FunctionalCostFunction]:
        """Every cost with where it comes from."""
        return functional.named_costs(self.cost, self.shapes[1].info)

    @property
    def costs(self) -> tuple[str, ...]:
        return tuple(self.sources)

    @cached_property
    def observation_size(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self.shapes[0].obs))

    @cached_property
    def action_size(self) -> int:
        return int(self.env.action_size)

    def reset(self, key: Array) -> tuple[State, Float[Array, " obs"]]:
        inner = self.env.reset(key)
        return State(inner, jnp.zeros((), jnp.int32)), functional.flat(inner.obs)

    def step(self, state: State, action: Float[Array, " action"]) -> tuple[State, Step]:
        before, action = state.inner, jnp.clip(action, -1.0, 1.0)
        inner = self.env.step(before, action)
        time = state.time + 1
        cut = time >= self.horizon
        # Brax's own time limit is `done` as well, and says so.
        truncation = jnp.asarray(inner.info.get("truncation", 0.0)) > 0
        terminated = (inner.done > 0) & ~truncation
        step = Step(
            functional.flat(inner.obs),
            jnp.asarray(inner.reward, jnp.float32),
            functional.read_cost(self.sources, before.obs, action, inner.obs, inner.info),
            terminated,
            (truncation | cut) & ~terminated,
        )
        return State(functional.like(inner, self.shapes[0]), time), step
