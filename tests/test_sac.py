"""The SAC core: its replay buffer, and a task whose optimum is known."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qcrl
from qcrl import UserError
from qcrl.algos import replay_buffer
from qcrl.algos.sac import SAC
from qcrl.constraints import Outage
from qcrl.envs.base import ONE_COST, Step
from qcrl.nets import soft
from qcrl.nets.network import Inputs


class State(NamedTuple):
    wanted: jax.Array


@dataclass(frozen=True)
class OneStepEnv:
    """The best action is half the observation, and every episode is one step: Q(s, a) = -(a - s/2)^2 exactly."""

    id, description, observation_size, action_size, horizon, fixed_length = "One", "one step", 1, 1, 1, True
    discrete, timed, costs = False, True, ONE_COST

    def reset(self, key):
        seen = jax.random.uniform(key, (1,), minval=-1.0)
        return State(seen / 2), seen

    def step(self, state, action):
        reward = -jnp.sum(jnp.square(action - state.wanted))
        return state, Step(2 * state.wanted, reward, jnp.zeros(()), jnp.ones((), bool), jnp.zeros((), bool))


@pytest.fixture(scope="module")
def trained():
    algorithm = SAC(
        num_envs=8, steps_per_env=40, batch_size=64, replay_size=5000, start_steps=100, hidden_sizes=(32, 32)
    )
    env = OneStepEnv()
    return algorithm, env, *iterated(algorithm, env, 40)


def iterated(algorithm, env, iterations):
    """The state after some iterations, and their metrics."""

    @jax.jit
    def run(key):
        state = algorithm.init(env, key, [Outage(15.0, 0.1)])
        return jax.lax.scan(lambda state, _: algorithm.iterate(env, state), state, length=iterations)

    return run(jax.random.key(0))


def test_plain_sac_finds_the_known_optimum(trained):
    algorithm, env, state, metrics = trained
    policy, obs = algorithm.policy_state(env, state), jnp.linspace(-0.9, 0.9, 19)[:, None]
    arguments = (env, policy, Inputs.first(obs, 1, 1), algorithm.initial_memory(env), jax.random.key(1))
    action, _ = algorithm.act(*arguments, deterministic=True)
    np.testing.assert_allclose(action, obs / 2, atol=0.12)
    # Random actions earn -1/3 - 1/12; the best -0; what is left is the entropy that is asked for.
    assert metrics.scalars["episode_return"][-1] > -0.1
    assert metrics.scalars["temperature"][-1] < metrics.scalars["temperature"][0]


def test_critics_learn_the_known_value(trained):
    _, _, state, _ = trained
    obs, action = (x.reshape(-1, 1) for x in jnp.meshgrid(jnp.linspace(-0.8, 0.8, 5), jnp.linspace(-0.8, 0.8, 5)))
    values = soft.q_values(state.learner.params["critics"], obs, action)
    exact = -jnp.square(action - obs / 2)[:, 0]
    assert jnp.max(jnp.abs(values - exact)) < 0.15


def test_half_precision_gives_nearly_the_same_values(trained, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # a CPU computes in float32
    _, _, state, _ = trained
    critics = state.learner.params["critics"]
    obs, action = jnp.linspace(-0.8, 0.8, 9)[:, None], jnp.full((9, 1), 0.3)
    rough = soft.q_values(SAC(matmul_precision="bfloat16").computing(critics), obs, action)
    assert rough.dtype == jnp.float32
    difference = jnp.abs(rough - soft.q_values(critics, obs, action))
    assert 0 < jnp.max(difference) < 0.03


def test_every_episode_is_reported_once(trained):
    algorithm, _, state, metrics = trained
    assert metrics.episodes.finished.all()
    assert metrics.episodes.finished.size == state.env_steps == 40 * algorithm.steps_per_iteration
    assert state.window.seen == state.env_steps


@dataclass(frozen=True)
class CountingEnv:
    """Eight steps of reward 1; one sees how many there were, and the number that the episode was given at its start."""

    id, description, observation_size, action_size, horizon, fixed_length = "Count", "eight steps", 2, 1, 8, True
    discrete, timed, costs = False, True, ONE_COST

    def reset(self, key):
        obs = jnp.stack([jnp.zeros(()), jax.random.uniform(key)])
        return obs, obs

    def step(self, obs, action):
        obs = obs + jnp.array([1.0, 0.0])
        return obs, Step(obs, jnp.ones(()), jnp.zeros(()), jnp.zeros((), bool), obs[0] >= 8)


# Episodes end with an iteration, with every second one, or within iterations.
@pytest.mark.parametrize("steps", [8, 4, 6])
def test_episodes_begin_again_at_their_end_and_only_there(steps):
    env = CountingEnv()
    algorithm = SAC(num_envs=4, steps_per_env=steps, block_length=2, batch_size=2, replay_size=96, hidden_sizes=(2,))
    state, metrics = iterated(algorithm, env, 24 // steps)
    assert metrics.episodes.finished.sum() == 3 * 4
    assert (metrics.episodes.return_[metrics.episodes.finished] == 8).all()
    time, number = jnp.moveaxis(state.store[:, :2].reshape(3, 8, 4, 2), -1, 0)
    assert (time == jnp.arange(8)[:, None]).all()
    assert (number == number[:, :1]).all()
    assert len(np.unique(number[:, 0])) == 12


def test_the_density_of_squashed_actions_integrates_to_one():
    policy = soft.init_layers(jax.random.key(3), (2, 8, 2), 1)
    noise = jnp.linspace(-8, 8, 20001)[:, None]
    action, log_prob = soft.act(policy, jnp.broadcast_to(jnp.array([0.3, -2.0]), (20001, 2)), noise)
    assert np.trapezoid(np.exp(log_prob), action[:, 0]) == pytest.approx(1.0, abs=1e-3)


def test_stacked_critics_are_separate_networks():
    """Every copy gives what a network of its own would give."""
    layers = soft.init_layers(jax.random.key(0), (3, 8, 4, 1), 2)
    x = jax.random.normal(jax.random.key(1), (5, 3))
    for copy, output in enumerate(soft.apply(layers, x)):
        first, second, third = layers
        hidden = jax.nn.relu(x @ first["kernel"][:, copy])
        hidden = jax.nn.relu(hidden @ second["kernel"][copy])
        np.testing.assert_allclose(output, hidden @ third["kernel"][copy], rtol=1e-4, atol=1e-6)


def test_replay_overwrites_the_oldest():
    records, seen = jnp.zeros((5, 1)), 0
    for rows in ([1, 2, 3], [4, 5, 6], [7]):
        records = replay_buffer.store(records, jnp.array(rows, float)[:, None], jnp.int32(seen))
        seen += len(rows)
    assert records[:, 0].tolist() == [6, 7, 3, 4, 5]


def test_replay_is_drawn_uniformly_from_what_was_stored():
    records = jnp.arange(10.0)[:, None]
    drawn = replay_buffer.sample(records, jnp.int32(4), jax.random.key(0), (20, 1000))
    counts = np.bincount(np.asarray(drawn, int).ravel(), minlength=10)
    assert (counts[4:] == 0).all()
    np.testing.assert_allclose(counts[:4] / 20000, 0.25, atol=5 * (0.25 * 0.75 / 20000) ** 0.5)
    assert replay_buffer.sample(records, jnp.int32(10**6), jax.random.key(0), (10000,)).max() == 9


def test_replay_that_does_not_fit_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match=r"replay memory: 100 x 120 GB = 1.2e\+04 GB, but only"):
        qcrl.train("wcsac", "TwoPathEnv-v0", qcrl.CVaR(15, 0.1), seeds=100, out=tmp_path / "run", replay_size=2 * 10**9)
    assert not (tmp_path / "run").exists()


def test_replay_is_compared_with_what_each_device_has_free():
    """Three lanes of 10 GB on each of two devices: the second has 35 GB left, then 25."""
    devices = lambda used: [
        SimpleNamespace(memory_stats=lambda: {"bytes_limit": 80 * 10**9}),
        SimpleNamespace(memory_stats=lambda: {"bytes_limit": 80 * 10**9, "bytes_in_use": used * 10**9}),
    ]
    assert replay_buffer.require_memory(6, 10**10, devices(45)) == "replay memory: 6 x 10 GB = 60 GB"
    with pytest.raises(UserError, match="6 x 10 GB = 60 GB, but only 50 GB are free"):
        replay_buffer.require_memory(6, 10**10, devices(55))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"polyak": 1.5}, "polyak is 1.5"),
        ({"steps_per_env": 30}, "multiple of block_length"),
        ({"steps_per_update": 7}, "multiple of steps_per_update"),
        ({"matmul_precision": "float16"}, "must be one of float32, tensorfloat32, bfloat16"),
    ],
)
def test_mistakes_in_hyper_parameters(changed, message):
    with pytest.raises(UserError, match=message):
        SAC(**changed)
