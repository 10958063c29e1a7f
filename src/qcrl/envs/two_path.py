"""The paper's Figure 1: two routes to the goal. Route 1 has the lower mean cost and the heavier tail.

The first action picks a route by its sign; the walk then takes `length` steps, and the whole cost of the route falls
due on arrival. Route costs are Weibull distributed, so that mean, quantile and outage have closed forms.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from qcrl.envs.base import ONE_COST, Step


@dataclass(frozen=True)
class Route:
    """A way to the goal: its reward and its Weibull cost, Pr(cost > x) = exp(-(x / scale) ** shape)."""

    reward: float
    shape: float
    scale: float

    def mean(self) -> float:
        return self.scale * math.gamma(1 + 1 / self.shape)

    def quantile(self, level: float) -> float:
        return self.scale * (-math.log1p(-level)) ** (1 / self.shape)

    def outage(self, limit: float) -> float:
        return math.exp(-((limit / self.scale) ** self.shape))


class State(NamedTuple):
    key: Array
    route: Int[Array, ""]
    """0 before the choice, then 1 or 2."""
    position: Int[Array, ""]


@dataclass(frozen=True)
class TwoPathEnv:
    """Choose a route, walk it, pay for it. At limit 15, route 1 goes over in 28.7% of episodes, route 2 in 8%."""

    routes: tuple[Route, Route] = (Route(1.0, 1.0, 12.0), Route(0.8, 8.0, 13.36))
    length: int = 4

    id = "TwoPathEnv-v0"
    description = "Two routes to the goal: the one with the lower mean cost has the heavier tail."
    observation_size = 4
    action_size = 1
    fixed_length = True
    discrete = False
    timed = True
    costs = ONE_COST

    @property
    def horizon(self) -> int:
        return self.length

    def reset(self, key: Array) -> tuple[State, Float[Array, " obs"]]:
        state = State(key, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
        return state, self.observe(state)

    def observe(self, state: State) -> Float[Array, " obs"]:
        return jnp.concatenate([jax.nn.one_hot(state.route, 3), state.position[None] / self.length])

    def step(self, state: State, action: Float[Array, " action"]) -> tuple[State, Step]:
        chosen = jnp.where(action[0] < 0, 1, 2)
        route = jnp.where(state.route == 0, chosen, state.route)
        after = State(state.key, route, state.position + 1)
        arrived = after.position >= self.length
        shape, scale, reward = (
            jnp.where(route == 1, getattr(self.routes[0], name), getattr(self.routes[1], name))
            for name in ("shape", "scale", "reward")
        )
        cost = scale * jax.random.exponential(state.key, dtype=scale.dtype) ** (1 / shape)
        obs = self.observe(after)
        return after, Step(
            obs,
            jnp.where(arrived, reward, 0.0).astype(obs.dtype),
            jnp.where(arrived, cost, 0.0).astype(obs.dtype),
            terminated=arrived,
            truncated=jnp.zeros((), bool),
        )
