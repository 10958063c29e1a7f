"""An algorithm that does next to nothing, quickly: what the training loop needs to be tested by itself."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from qcrl.algos import ALGORITHMS, PRESETS, Episodes, Metrics


class State(NamedTuple):
    key: Any
    weight: Any
    iteration: Any
    env_steps: Any
    limit: Any
    probability: Any
    alive: Any


@dataclass(frozen=True)
class Fake:
    """Draws episode costs at random; its weight is the sum of all costs so far."""

    num_envs: int = 2
    """Episodes per iteration."""
    breaks_at: int = 10**6
    """Iteration in which lanes of the broken probability turn non-finite."""
    broken_probability: float = 0.5
    """Probability whose lanes break."""
    scale: float = 10.0
    """Mean episode cost."""
    max_norm: float = float("inf")
    """Not used."""
    hidden_sizes: tuple[int, ...] = (4, 4)
    """Not used."""
    driver: str = "quantile"
    """Not used."""
    window: int = 100
    """Not used."""
    driver_window: int = 100
    """Not used."""

    @property
    def steps_per_iteration(self):
        return 10 * self.num_envs

    def init(self, env, key, limit, probability):
        zero = jnp.zeros((), jnp.int32)
        return State(key, jnp.zeros(()), zero, zero, jnp.float32(limit), jnp.float32(probability), jnp.ones((), bool))

    def iterate(self, env, state):
        key, draw = jax.random.split(state.key)
        costs = self.scale * jax.random.exponential(draw, (self.num_envs,))
        after = state._replace(
            key=key,
            weight=state.weight + costs.sum(),
            iteration=state.iteration + 1,
            env_steps=state.env_steps + self.steps_per_iteration,
        )
        broken = (after.iteration >= self.breaks_at) & (state.probability == self.broken_probability)
        alive = state.alive & ~broken
        raw = [jax.random.key_data(key), jax.random.key_data(state.key)]
        after = after._replace(key=jax.random.wrap_key_data(jnp.where(alive, *raw)))
        kept = State(
            after.key, *(jnp.where(alive, new, old) for new, old in zip(after[1:], state[1:], strict=True))
        )._replace(alive=alive)
        scalars = {
            "iteration": kept.iteration,
            "env_steps": kept.env_steps,
            "episode_return": -costs.mean(),
            "episode_cost": costs.mean(),
            "cost_quantile": costs.max(),
            "outage": jnp.mean(costs > state.limit),
            "multiplier": kept.weight,
            "alive": alive,
            "some_loss": costs.std(),
        }
        steps = kept.env_steps - 10 * jnp.arange(self.num_envs - 1, -1, -1)
        return kept, Metrics(scalars, Episodes(jnp.ones(self.num_envs, bool) & alive, steps, -costs, costs))

    def policy_state(self, state):
        return {"weight": state.weight, "limit": state.limit}

    def initial_carry(self, env):
        return jnp.zeros((), jnp.int32)

    def act(self, env, policy_state, carry, obs, action, reward, cost, key, deterministic):
        noise = jnp.where(deterministic, 0.0, jax.random.normal(key, (env.action_size,)))
        return policy_state["weight"] + obs.sum() + 10 * action + 100 * reward + 1000 * cost + noise, carry + 1


@pytest.fixture
def fake(monkeypatch):
    """Makes the algorithm `fake` known."""
    monkeypatch.setitem(ALGORITHMS, "fake", Fake)
    monkeypatch.setitem(PRESETS, "fake", {"fast": Fake(), "paper": Fake(num_envs=3)})
    return "fake"
