"""The rollout's bookkeeping on an environment whose every number is known: resets, episode totals, memories."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qcrl.algos.algorithm import Algorithm
from qcrl.algos.find import build
from qcrl.algos.qcpo import QCPO
from qcrl.constraints import Outage
from qcrl.envs.base import ONE_COST, Step
from qcrl.nets.network import Memory
from qcrl.sampling.record import read_trajectory

ENVS = 3


class Keeps:
    """Learns nothing, and stores what it was given to learn from."""

    def learn(self, env, state, experience):
        return state._replace(store=read_trajectory(env, experience)), {}


class Late(Keeps, QCPO):
    pass


LATE = Late(
    **vars(
        replace(
            build("qcpo", "authors"), num_envs=ENVS, steps_per_env=8, chunk_length=4, hidden_sizes=(6,), lstm_size=6
        )
    )
)
"""It sees costs one step late."""


@dataclass(frozen=True)
class Counter(Keeps, Algorithm):
    """The memory counts the steps of the episode, and the action tells them."""

    num_envs: int = ENVS
    chunk: int = 4

    def init(self, env, key, constraints):
        return self.start(env, jnp.zeros(()), key, key, constraints)

    def memory_interval(self, env):
        return self.chunk

    def initial_memory(self, env):
        return Memory(jnp.zeros(2), jnp.zeros(2))

    def actor(self, env, state):
        return ()

    def sample(self, env, actor, inputs, memory, noise):
        return jnp.stack([memory.hidden[:, 0]], axis=-1), Memory(memory.hidden + 1, memory.cell)


class State(NamedTuple):
    position: jax.Array


@dataclass(frozen=True)
class CountingEnv:
    """Observes its step number plus a fraction drawn at reset; the reward is its step number, the cost 1, or grows."""

    horizon: int
    fixed_length: bool
    truncates: bool = False
    growing_cost: bool = False

    id = "counting"
    description = "counts"
    observation_size = 1
    action_size = 1
    discrete = False
    timed = True
    costs = ONE_COST

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


def run(env, steps, chunk, rollouts):
    algorithm = Counter(steps_per_env=steps, chunk=chunk)
    state = algorithm.init(env, jax.random.PRNGKey(0), [Outage(15, 0.1)])
    iterate = jax.jit(lambda state: algorithm.iterate(env, state))
    trajectories, episodes = [], []
    for _ in range(rollouts):
        state, metrics = iterate(state._replace(store=()))
        trajectories.append(state.store)
        episodes.append(metrics.episodes)
    joined = jax.tree.map(lambda *x: np.concatenate(x), *trajectories)
    return joined, jax.tree.map(lambda *x: np.concatenate(x), *episodes)


# Aligned with chunks, within chunks, longer than a rollout, not a divisor of anything, and a single step.
SHAPES = [(4, 8, 4), (2, 8, 4), (16, 8, 4), (5, 8, 4), (3, 8, 8), (3, 1, 1)]


@pytest.mark.parametrize(("horizon", "steps", "chunk"), SHAPES)
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
    np.testing.assert_array_equal(trajectory.inputs.previous_cost[:, 0, 0], number > 0)
    np.testing.assert_array_equal(trajectory.inputs.spent[:, 0, 0], number)
    np.testing.assert_array_equal(trajectory.inputs.time[:, 0], number)
    np.testing.assert_array_equal(trajectory.memory.hidden[:, 0, 0], number[::chunk])
    # Every episode is a new one, in every environment.
    starts = trajectory.inputs.obs[trajectory.first]
    assert len(np.unique(starts)) == starts.size

    ends = np.flatnonzero(number == horizon - 1)
    finished = episodes.finished
    np.testing.assert_array_equal(episodes.env_steps[finished], np.repeat((ends + 1) * ENVS, ENVS))
    np.testing.assert_array_equal(episodes.cost[finished, 0], horizon)
    np.testing.assert_array_equal(episodes.return_[finished], horizon * (horizon + 1) / 2)


@pytest.mark.parametrize("lstm_size", [6, 0])
@pytest.mark.parametrize("horizon", [4, 5])
def test_the_learner_sees_what_the_actor_saw(horizon, lstm_size):
    """With costs one step late, within chunks and across them, rollouts and episodes."""
    algorithm = replace(LATE, lstm_size=lstm_size)
    env = CountingEnv(horizon, True, growing_cost=True)
    network, from_chunks = algorithm.network(env), algorithm._from_chunks

    @jax.jit
    def once(state):
        noise_key, _ = jax.random.split(jax.random.split(state.key)[1])
        params, normaliser, *_ = state.learner
        state, _ = algorithm.iterate(env, state._replace(store=()))
        batch = state.store
        memory = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), batch.memory)
        inputs, first = algorithm._to_chunks((batch.inputs, batch.first))
        outputs, _ = network.sequence(params, normaliser, inputs, first, memory)
        noise = batch.action - jnp.tanh(from_chunks(outputs)[..., :1])  # the standard deviation is 1
        return state, noise, jax.random.normal(noise_key, noise.shape)

    state = algorithm.init(env, jax.random.PRNGKey(1), [Outage(15, 0.1)])
    for _ in range(3):
        state, noise, drawn = once(state)
        np.testing.assert_allclose(noise, drawn, atol=1e-5)


@pytest.mark.parametrize("lstm_size", [6, 0])
def test_what_follows_a_time_limit_is_judged_with_the_memory_of_its_episode(lstm_size):
    algorithm = replace(LATE, lstm_size=lstm_size, time_limit="bootstrap")
    env = CountingEnv(4, True, truncates=True, growing_cost=True)
    network = algorithm.network(env)
    state = jax.jit(lambda key: algorithm.init(env, key, [Outage(15, 0.1)]))(jax.random.PRNGKey(1))
    params, normaliser, *_ = state.learner

    @jax.jit
    def once(state):
        batch = algorithm.iterate(env, state)[0].store
        memory = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), batch.memory)
        return batch, algorithm._outputs(env, state, batch, memory)[1]

    batch, following = once(state)
    step, memory = jax.jit(network.step), network.initial_memory(ENVS)
    for t in range(4):
        inputs = jax.tree.map(lambda x, t=t: x[t], batch.inputs)
        _, memory = step(params, normaliser, inputs, memory)
    last = inputs.after(batch.next_obs[3], batch.action[3], batch.reward[3], batch.cost[3])
    expected, _ = step(params, normaliser, last, memory)
    assert batch.truncated[3].all()
    np.testing.assert_allclose(following[3], expected, atol=1e-5)


def test_fixed_length_episodes_come_in_few_rows():
    _, episodes = run(CountingEnv(4, True), steps=8, chunk=4, rollouts=1)
    assert episodes.finished.shape == (2 * ENVS,)
