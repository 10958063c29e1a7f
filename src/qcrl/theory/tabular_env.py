"""A tabular CMDP as a functional environment, so that what is learned can be held against the exact optimum."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from qcrl.envs.base import ONE_COST, Step
from qcrl.envs.host.actions import Actions
from qcrl.theory.cmdp import CMDP
from qcrl.theory.examples import MACHINE_HORIZON, machine


class State(NamedTuple):
    key: Array
    state: Int[Array, ""]
    time: Int[Array, ""]


@dataclass(frozen=True, eq=False)
class TabularEnv:
    """Shows the state, not the time, and is cut off after `horizon` steps.

    A critic that cannot see the clock cannot know that nothing follows, but it can learn what usually does.
    """

    cmdp: CMDP
    horizon: int

    id = "TabularEnv-v0"
    description = "A finite CMDP with an exact solution."
    fixed_length = True
    discrete = True
    timed = True
    costs = ONE_COST
    actions = Actions(discrete=True)

    @property
    def observation_size(self) -> int:
        return self.cmdp.states

    @property
    def action_size(self) -> int:
        return self.cmdp.actions

    def reset(self, key: Array) -> tuple[State, Float[Array, " obs"]]:
        state = State(key, jnp.asarray(self.cmdp.start, jnp.int32), jnp.zeros((), jnp.int32))
        return state, self.observe(state)

    def observe(self, state: State) -> Float[Array, " obs"]:
        return jax.nn.one_hot(state.state, self.cmdp.states)

    def step(self, state: State, action: Float[Array, " action"]) -> tuple[State, Step]:
        cmdp, chosen = self.cmdp, jnp.argmax(action)
        key, for_state, for_noise = jax.random.split(state.key, 3)
        edges = jnp.asarray(cmdp.transition.cumsum(-1)[:, :, :-1], jnp.float32)[state.state, chosen]
        after = jnp.sum(jax.random.uniform(for_state) > edges).astype(jnp.int32)
        noise = jax.random.uniform(for_noise, (2,)).mean()
        cost = jnp.asarray(cmdp.cost, jnp.float32) + jnp.asarray(cmdp.width, jnp.float32) * noise
        new = State(key, after, state.time + 1)
        return new, Step(
            self.observe(new),
            jnp.asarray(cmdp.reward, jnp.float32)[state.state, chosen],
            cost[state.state, chosen],
            terminated=jnp.zeros((), bool),
            truncated=new.time >= self.horizon,
        )


def machine_env() -> TabularEnv:
    """The machine of `qcrl.theory.examples` over its horizon."""
    return TabularEnv(machine(), MACHINE_HORIZON)
