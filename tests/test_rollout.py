"""The rollout's bookkeeping on an environment whose every number is known: resets, episode totals, memories."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qcrl.algos import preset
from qcrl.envs.base import Step
from qcrl.networks import Inputs, Memory, only_heads
from qcrl.rollout import rollout, start

ENVS = 3
LATE = replace(
    preset("qcpo", "authors"), num_envs=ENVS, steps_per_env=8, chunk_length=4, hidden_sizes=(6,), lstm_size=6
)
"""It sees costs one step late."""


class State(NamedTuple):
    position: jax.Array


@dataclass(frozen=True)
class CountingEnv:
    """Observes its step number plus a fraction drawn at reset; the reward is its step number and the cost is 1, or grows."""

    horizon: int
    fixed_length: bool
    truncates: bool = False
    growing_cost: bool = False

    id = "counting"
    description = "counts"
    observation_size = 1
    action_size = 1

    def reset(self, key):
        state = State(jax.random.uniform(key, maxval=0.5))
        return state, state.position[None]

    def step(self, state, action):
        position = state.position + 1
        end = position >= self.horizon
        number = jnp.floor(position)
        never = jnp.zeros((), bool)
        flags = (never, end) if self.truncates else (end, never)
        return State(position), Step(position[None], number, 1.0 + self.growing_cost * number, *flags)


def act(inputs, memory, noise):
    """The memory counts the steps of the episode, and the action tells them."""
    return jnp.stack([memory.hidden[:, 0]], axis=-1), Memory(memory.hidden + 1, memory.cell)


def run(env, steps, chunk, rollouts):
    memory = Memory(jnp.zeros((ENVS, 2)), jnp.zeros((ENVS, 2)))
    actors = start(env, jax.random.PRNGKey(0), ENVS, memory)
    run_once = jax.jit(lambda actors, key, before: rollout(env, act, actors, key, steps, chunk, before))
    trajectories, episodes = [], []
    for index in range(rollouts):
        before = jnp.int32(index * steps)
        actors, trajectory, finished = run_once(actors, jax.random.PRNGKey(index + 1), before)
        trajectories.append(trajectory)
        episodes.append(finished)
    joined = jax.tree.map(lambda *x: np.concatenate(x), *trajectories)
    return joined, jax.tree.map(lambda *x: np.concatenate(x), *episodes)


# Aligned with chunks, within chunks, longer than a rollout, and not a divisor of anything.
@pytest.mark.parametrize(("horizon", "steps", "chunk"), [(4, 8, 4), (2, 8, 4), (16, 8, 4), (5, 8, 4), (3, 8, 8)])
@pytest.mark.parametrize("fixed_length", [True, False])
def test_episodes_begin_and_end_where_they_should(horizon, steps, chunk, fixed_length):
    env = CountingEnv(horizon, fixed_length, truncates=horizon == 5)
    trajectory, episodes = run(env, steps, chunk, rollouts=5)
    total = 5 * steps
    number = np.arange(total) % horizon
    one_env = lambda x: x[:, 0]
    np.testing.assert_array_equal(one_env(trajectory.first), number == 0)
    np.testing.assert_array_equal(
        one_env(trajectory.truncated if env.truncates else trajectory.terminated), number == horizon - 1
    )
    np.testing.assert_array_equal(np.floor(trajectory.inputs.obs[:, 0, 0]), number)
    np.testing.assert_array_equal(np.floor(trajectory.next_obs[:, 0, 0]), number + 1)
    # Nothing of an episode reaches the next one.
    np.testing.assert_array_equal(trajectory.action[:, 0, 0], number)
    np.testing.assert_array_equal(trajectory.inputs.previous_action[:, 0, 0], np.maximum(number - 1, 0))
    np.testing.assert_array_equal(trajectory.inputs.previous_reward[:, 0], number)
    np.testing.assert_array_equal(trajectory.inputs.previous_cost[:, 0], number > 0)
    np.testing.assert_array_equal(trajectory.memory.hidden[:, 0, 0], number[::chunk])
    # Every episode is a new one, in every environment.
    starts = trajectory.inputs.obs[trajectory.first]
    assert len(np.unique(starts)) == starts.size

    ends = np.flatnonzero(number == horizon - 1)
    finished = episodes.finished
    np.testing.assert_array_equal(episodes.env_steps[finished], np.repeat((ends + 1) * ENVS, ENVS))
    np.testing.assert_array_equal(episodes.cost[finished], horizon)
    np.testing.assert_array_equal(episodes.return_[finished], horizon * (horizon + 1) / 2)


@pytest.mark.parametrize("lstm_size", [6, 0])
@pytest.mark.parametrize("horizon", [4, 5])
def test_the_learner_sees_what_the_actor_saw(horizon, lstm_size):
    """With costs one step late, within chunks and across them, rollouts and episodes."""
    algorithm = replace(LATE, lstm_size=lstm_size)
    env, network = CountingEnv(horizon, True, growing_cost=True), algorithm.network
    actors = start(env, jax.random.PRNGKey(0), ENVS, network.initial_memory(ENVS))
    params, normaliser = algorithm.init_params(env, jax.random.PRNGKey(1))
    to_chunks, from_chunks = algorithm._to_chunks, algorithm._from_chunks

    @jax.jit
    def once(actors, key, before):
        sample = lambda *step: algorithm.sample(only_heads(params, 1), normaliser, *step)
        actors, batch, _ = rollout(env, sample, actors, key, 8, 4, before)
        memory = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), batch.memory)
        outputs, _ = network.sequence(params, normaliser, *to_chunks((batch.inputs, batch.first)), memory)
        noise = batch.action - jnp.tanh(from_chunks(outputs)[..., :1])  # the standard deviation is 1
        return actors, noise, jax.random.normal(jax.random.split(key)[0], noise.shape)

    for index in range(3):
        actors, noise, drawn = once(actors, jax.random.PRNGKey(index), 8 * index)
        np.testing.assert_allclose(noise, drawn, atol=1e-5)


@pytest.mark.parametrize("lstm_size", [6, 0])
def test_what_follows_a_time_limit_is_judged_with_the_memory_of_its_episode(lstm_size):
    algorithm = replace(LATE, lstm_size=lstm_size, time_limit="bootstrap")
    env, network = CountingEnv(4, True, truncates=True, growing_cost=True), algorithm.network
    state = jax.jit(lambda key: algorithm.init(env, key, 15, 0.1))(jax.random.PRNGKey(1))
    params, normaliser = state.params, state.normaliser

    @jax.jit
    def once(key):
        sample = lambda *step: algorithm.sample(only_heads(params, 1), normaliser, *step)
        _, batch, _ = rollout(env, sample, state.actors, key, 8, 4, 0)
        memory = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), batch.memory)
        return batch, algorithm._outputs(state, batch, memory)[1]

    batch, following = once(jax.random.PRNGKey(2))
    step, memory = jax.jit(network.step), network.initial_memory(ENVS)
    for t in range(4):
        _, memory = step(params, normaliser, jax.tree.map(lambda x, t=t: x[t], batch.inputs), memory)
    last = Inputs(batch.next_obs[3], batch.action[3], batch.reward[3], batch.cost[3])
    expected, _ = step(params, normaliser, last, memory)
    assert batch.truncated[3].all()
    np.testing.assert_allclose(following[3], expected, atol=1e-5)


def test_fixed_length_episodes_come_in_few_rows():
    _, episodes = run(CountingEnv(4, True), steps=8, chunk=4, rollouts=1)
    assert episodes.finished.shape == (2 * ENVS,)
