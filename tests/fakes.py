"""An algorithm that does next to nothing, quickly: what the training loop needs to be tested by itself."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest

from qcrl.algos.algorithm import Algorithm
from qcrl.algos.find import algorithms
from qcrl.constraints import Mean


@dataclass(frozen=True)
class Fake(Algorithm):
    """Its weight is the sum of all episode costs so far, times the scale; in training its actions are noise."""

    name = "fake"
    label = "Fake"

    num_envs: int = 2
    """Environments stepped side by side."""
    steps_per_env: int = 10
    """Steps taken in each environment per iteration."""
    scale: float = 1.0
    """What a cost counts as in the weight."""
    breaks_at: int = 10**6
    """Iteration in which lanes of the broken probability turn non-finite."""
    broken_probability: float = 0.5
    """Probability whose lanes break."""
    max_norm: float = float("inf")
    """Not used."""
    hidden_sizes: tuple[int, ...] = (4, 4)
    """Not used."""
    driver_window: int = 100
    """Not used."""

    def init(self, env, key, constraints):
        key, env_key = jax.random.split(jax.random.key_data(key))
        return self.start(env, {"weight": jnp.zeros(())}, key, env_key, constraints)

    def multiplier(self, learner):
        return learner["weight"]

    def actor(self, env, state):
        return {"weight": state.learner["weight"], "limit": state.constraints[0].limit}

    def initial_memory(self, env):
        return jnp.zeros(())

    def sample(self, env, actor, inputs, memory, noise):
        return noise, memory + 1

    def act(self, env, policy, inputs, memory, key, deterministic=False):
        noise = jnp.where(deterministic, 0.0, jax.random.normal(key, inputs.previous_action.shape))
        seen = inputs.obs.sum() + 10 * inputs.previous_action + 100 * inputs.previous_reward
        return policy["weight"] + seen + 1000 * inputs.previous_cost + noise, memory + 1

    def learn(self, env, state, experience):
        episodes = experience.episodes
        weight = state.learner["weight"] + self.scale * jnp.sum(episodes.cost[:, 0], where=episodes.finished)
        broken = (state.iteration + 1 >= self.breaks_at) & (state.probability == self.broken_probability)
        key, _ = jax.random.split(state.key)
        learner = {"weight": jnp.where(broken, jnp.nan, weight)}
        return state._replace(learner=learner, key=key), {"some_loss": jnp.std(experience.rows)}


Fake.presets = {"fast": Fake(), "paper": Fake(num_envs=3)}


class FakeMean(Fake):
    """Trains under another constraint than is asked for."""

    name = "fake_mean"
    trains_under = Mean


class Own(Fake):
    """As users bring theirs: without a name and without presets."""


@pytest.fixture
def fake(monkeypatch):
    """Makes the algorithm `fake` known."""
    monkeypatch.setitem(algorithms(), "fake", Fake)
    return "fake"
