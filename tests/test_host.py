"""Environments that run in Python: exact costs, their spaces, errors by name, workers that die."""

import functools
from collections import Counter
from contextlib import ExitStack, closing
from types import SimpleNamespace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import qcrl
from host_envs import SMALL, Faulty, InPlace, Mortal, Nested, Ragged, SixValues, Written, moved, written
from qcrl.algos.ppo_lag import PPOLag
from qcrl.envs.host.environment import open_host
from qcrl.envs.host.spaces import Actions
from qcrl.errors import UserError, WorkerFailure
from qcrl.nets import distributions
from qcrl.sampling import device
from qcrl.sampling.host import HostSampler
from qcrl.sampling.record import Experience, read_trajectory


def open_rollout(stack, env, count=3, workers=0, lanes=1, **settings):
    """A rollout that only collects, and the policy it collects with."""
    host = open_host(env)
    algorithm = PPOLag(**{**SMALL, "cost_input": "none", "num_envs": count, **settings})
    state = jax.vmap(lambda seed: algorithm.init(host, jax.random.key(seed), [qcrl.Mean(5.0)]))(np.arange(lanes))
    fleet = host.fleet(lanes * count, workers)
    stack.callback(fleet.close)
    collector = HostSampler(algorithm, host, fleet, list(range(lanes)))
    actor, _, words, env_steps = collector.prepare(state)
    return collector, lambda: collector.collect(actor, np.asarray(words), np.asarray(env_steps))


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


VECTORS = {"sync": SyncVectorEnv, "async": functools.partial(AsyncVectorEnv, context="spawn")}


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("kind", list(VECTORS))
def test_vector_environments_lose_no_cost_and_count_none_twice(kind, mode, tmp_path, stack):
    make = functools.partial(Written, Ragged(), tmp_path) if kind == "async" else lambda: Written(Ragged(), tmp_path)
    with closing(VECTORS[kind]([make] * 2, autoreset_mode=mode)) as vector:
        collector, collect = open_rollout(stack, vector, count=2)
        batches = [collect()[0][0] for _ in range(3)]
        ours = Counter(cost for _, (_, cost) in collector.finished[0])
    assert sum(ours.values()) > 30
    assert ours == written(tmp_path)
    for rows in batches:  # only real steps: time goes up by one, and after an end comes the start of the next episode
        obs, next_obs, ended = rows[..., :2], rows[..., 2:4], rows[..., 8:10].any(axis=-1)
        assert (next_obs == obs + np.array([0, 1])).all()
        assert (obs[1:] == np.where(ended[:-1, :, None], (obs[:-1] + 1) * [1, 0], next_obs[:-1])).all()
        assert ended.sum() > 10


@pytest.mark.parametrize("workers", [0, 2])
def test_own_environments_lose_no_cost_and_count_none_twice(workers, tmp_path, stack):
    collector, collect = open_rollout(stack, lambda: Written(Ragged(), tmp_path), workers=workers)
    tried = written(tmp_path)
    rows = np.concatenate([collect()[0] for _ in range(3)], axis=1)[0]
    assert Counter(cost for _, (_, cost) in collector.finished[0]) == written(tmp_path) - tried
    ended = rows[..., 8:10].any(axis=-1)
    assert (rows[1:, :, :2] == np.where(ended[:-1, :, None], rows[1:, :, :2], rows[:-1, :, 2:4])).all()
    assert sorted(rows[..., -1][ended]) == pytest.approx(
        sorted(cost for _, (_, cost) in collector.finished[0]), rel=1e-6
    )


def test_the_memory_of_chunks_is_that_of_the_network_run_through_the_batch(stack):
    collector, collect = open_rollout(stack, Ragged, lstm_size=4, cost_input="lstm", late_cost=True, steps_per_env=30)
    start = collector.memory
    rows, memory = collect()
    algorithm, host = collector.learner, collector.env
    state = algorithm.init(host, jax.random.key(np.uint32(0)), [qcrl.Mean(5.0)])
    blank = device.begin(host, jax.random.key(0), 3, algorithm.initial_memory(host))
    experience = Experience(rows[0], blank, None, jax.tree.map(lambda x: x[0], memory))
    trajectory = read_trajectory(host, experience)
    params, normaliser, *_ = state.learner
    _, memories = algorithm.network(host).sequence(
        params, normaliser, trajectory.inputs, trajectory.first, jax.tree.map(lambda x: x[0], start)
    )
    for chunk in (1, 2):
        for kept, expected in zip(memory, memories):
            expected = np.where(trajectory.first[10 * chunk][:, None], 0.0, expected[10 * chunk - 1])
            np.testing.assert_allclose(kept[0, chunk], expected, atol=1e-6)
    assert all(kept[0, 1:].any() for kept in memory)


def test_the_learner_is_told_what_the_actor_knew(stack):
    """Also across batches, in the middle of episodes."""
    collector, collect = open_rollout(stack, Ragged)
    known, act = [], collector.act
    collector.act = lambda actor, packed, memory: known.append(packed[0]) or act(actor, packed, memory)
    nowhere = SimpleNamespace(actors=SimpleNamespace(env_state=()))
    for _ in range(2):
        known.clear()
        start = jax.tree.map(lambda x: x[0], collector._actors(nowhere))
        rows, memory = collect()
        trajectory = read_trajectory(collector.env, Experience(rows[0], start, None, memory))
        packed = np.stack(known)
        np.testing.assert_array_equal(packed[..., -1] > 0, trajectory.first)
        for one, other in zip(trajectory.inputs, collector._read(packed[..., : sum(collector.sizes)], np)):
            np.testing.assert_array_equal(one, other)
    assert not start.first.all()
    assert trajectory.inputs.time.max() == 7  # the longest episodes have 8 steps


@pytest.mark.parametrize(
    ("fault", "words"), [("leave out", "no cost"), (-0.5, "-0.5"), (float("nan"), "nan"), (float("inf"), "inf")]
)
@pytest.mark.parametrize("vector", [False, True])
def test_a_bad_cost_is_an_error_that_names_environment_and_step(fault, words, vector, stack):
    make = lambda: Faulty(fault)
    env = SyncVectorEnv([Ragged, make], autoreset_mode=AutoresetMode.DISABLED) if vector else make
    _, collect = open_rollout(stack, env, count=2)
    # The vector environment was stepped once before, to find the cost.
    with pytest.raises(UserError, match=rf"environment {int(vector)} of .*, step {10 - vector}: ") as caught:
        collect()
    assert words in str(caught.value)


def test_where_the_cost_comes_from_is_found_and_stated():
    assert 'info["cost"] (found automatically)' in str(open_host(Ragged))
    assert "6-tuple (found automatically)" in str(open_host(SixValues))
    assert str(open_host(Nested, "penalty").source) == 'info["penalty"]'
    with pytest.raises(UserError, match=r"Nested.* reports no cost.*penalty"):
        open_host(Nested)
    with pytest.raises(UserError, match="has no cost"):
        open_host(Ragged, "penalty")
    given = open_host("CartPole-v1", lambda obs, action, next_obs, info: obs[0] ** 2)
    fleet = given.fleet(1)
    before = fleet.reset([3])
    assert fleet.step(np.array([1])).cost == pytest.approx(before[0, 0] ** 2)


@pytest.mark.parametrize("nested", [False, True])
def test_a_cost_function_is_given_observations_as_they_were(nested):
    fleet = open_host(lambda: InPlace(nested), moved).fleet(1)
    fleet.reset([0])
    assert [fleet.step(np.array([0])).cost[0, 0] for _ in range(7)] == [1.0] * 7
    inside = fleet.envs[0].env
    fleet.envs[0].raw_reset(0)
    assert fleet.envs[0].raw_step(0).obs is inside.observe() or nested  # wrappers are given what it returns


def test_actions_are_mapped_from_minus_one_to_one_onto_the_bounds():
    box = Actions(False, (2,), "float32", 0, (-2.0, 0.0), (2.0, 4.0))
    np.testing.assert_allclose(box.to_env(np.array([[0.5, -1.0], [3.0, -3.0]])), [[1.0, 0.0], [2.0, 0.0]])
    half = Actions(False, (2,), "float32", 0, (0.0, None), (None, None))
    np.testing.assert_allclose(half.to_env(np.array([-3.0, 7.0])), [0.0, 7.0])
    assert open_host(Nested, "penalty").actions.to_env(np.eye(3)).tolist() == [-1, 0, 1]


def test_dictionaries_are_flattened_in_key_order_with_one_hot_choices():
    fleet = open_host(Nested, "penalty").fleet(1)
    assert fleet.reset([0])[0].tolist() == [0.5] * 4 + [0, 0, 1]


@pytest.mark.parametrize(
    ("observations", "actions"),
    [
        (gymnasium.spaces.Text(5), gymnasium.spaces.Discrete(2)),
        (gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Dict({"a": gymnasium.spaces.Text(3)})),
        (gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Box(0, 5, (1,), int)),
    ],
)
def test_other_spaces_are_an_error_before_training(observations, actions, tmp_path):
    env = Ragged()
    env.observation_space, env.action_space = observations, actions
    with pytest.raises(UserError, match=r"space of Ragged.* can be trained"):
        qcrl.train("qcpo", env, qcrl.Outage(5.0, 0.1), out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_categorical_policy_draws_by_its_softmax_and_knows_its_probabilities():
    logits = jnp.array([0.5, -1.0, 1.5])
    expected = np.exp(logits) / np.exp(logits).sum()
    drawn = distributions.draw({}, logits, jax.random.normal(jax.random.key(0), (40_000, 3)))
    np.testing.assert_allclose(drawn.mean(axis=0), expected, atol=4 * 0.5 / 200)
    np.testing.assert_allclose(np.exp(distributions.log_prob({}, logits, jnp.eye(3))), expected, rtol=1e-5)
    assert distributions.draw({}, logits, 0.0).tolist() == [0, 0, 1]
    assert distributions.statistics({}, logits)["entropy"] == pytest.approx(
        -(expected * np.log(expected)).sum(), rel=1e-5
    )


def step_on(fleet):
    for _ in range(60):
        fleet.step(np.array([[0.0, 1.0], [0.0, 1.0]], np.float32))


def test_a_hanging_worker_is_named(tmp_path, stack):
    (tmp_path / "hang").touch()
    fleet = open_host(functools.partial(Mortal, tmp_path)).fleet(2, workers=2, timeout=1.0)
    stack.callback(fleet.close)
    fleet.reset([0, 1])
    with pytest.raises(WorkerFailure, match=r"worker \d .* gave no answer for 1 s, at step 50"):
        step_on(fleet)


def test_a_killed_worker_of_the_users_vector_environment_is_named(tmp_path, stack):
    (tmp_path / "die").touch()
    vector = AsyncVectorEnv([functools.partial(Mortal, tmp_path)] * 2, context="spawn")
    fleet = open_host(vector).fleet(2)
    fleet.reset([0, 1])
    with pytest.raises(WorkerFailure, match=r"Worker<AsyncVectorEnv>-\d \(environment \d, exit code -9\)"):
        step_on(fleet)
