"""Policies outside of training: NumPy in, NumPy out, the same numbers as inside."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qcrl
from qcrl import Outage, UserError
from qcrl.algos import hyperparameters
from qcrl.algos.find import build
from qcrl.envs import make
from qcrl.envs.base import Description
from qcrl.nets.network import Inputs
from qcrl.runs import checkpoints
from qcrl.runs.policy import Policy
from qcrl.sampling.play.device import play_on_device
from qcrl.training import checks

pytest_plugins = ["fakes"]
SMALL = {"num_envs": 2, "steps_per_env": 8, "chunk_length": 8, "hidden_sizes": (8,), "minibatches": 1}


def save(path, algorithm, env, change=lambda state: state, constraint=Outage(15.0, 0.1)):  # noqa: B008
    """An untrained policy in a file, as training writes it."""
    (lane,) = checks.lanes(algorithm, constraint, seeds=1, first_seed=0)
    start = lambda: algorithm.policy_state(env, algorithm.init(env, jax.random.key(0), lane.constraints))
    state = change(jax.jit(start)())
    info = {
        "algorithm": hyperparameters.to_json(algorithm),
        "environment": Description.of(env).as_dict(),
        "forward": algorithm.deployment(env, lane.constraints),
    }
    checkpoints.write_tree(path, state, {**info, **lane.as_dict()})
    return state


@pytest.mark.parametrize(("name", "lstm_size"), [("qcpo", 8), ("ppo_lag", 0)])
def test_a_loaded_policy_acts_as_the_algorithm_does(tmp_path, name, lstm_size):
    env = make("TwoPathEnv-v0")
    algorithm = hyperparameters.replace(build(name, "fast"), {**SMALL, "lstm_size": lstm_size})
    state = save(tmp_path / "policy.safetensors", algorithm, env)
    policy = Policy.load(tmp_path / "policy.safetensors")
    assert policy.algorithm == algorithm

    rng = np.random.default_rng(0)
    carry, memory, last, spent = policy.initial(), algorithm.initial_memory(env), jnp.zeros(1), 0.0
    for step in range(4):
        obs, reward, cost = rng.normal(size=4), np.float32(0.1 * step), np.float32(2 * step)
        action, carry = policy(obs, carry, reward, cost, deterministic=True)
        assert isinstance(action, np.ndarray)
        spent += cost
        inputs = Inputs(jnp.float32(obs), last, reward, cost[None], jnp.float32([spent]), jnp.float32(step))
        last, memory = algorithm.act(env, state, inputs, memory, jax.random.key(0), deterministic=True)
        np.testing.assert_allclose(action, last, rtol=1e-5, atol=1e-6)
        assert (carry.spent, carry.time) == (spent, step + 1)


@pytest.fixture
def policy(fake, tmp_path):
    run = qcrl.train(
        "fake", "TwoPathEnv-v0", qcrl.Outage(15, 0.1), steps=20, out=tmp_path / "run", progress=False, scale=0.0
    )
    return qcrl.load(run.path).policy(seed=0)


def test_the_last_step_reaches_the_policy(policy):
    """The fake policy answers with weight (0 here) + sum of obs + 10 action + 100 reward + 1000 cost."""
    obs = np.full(4, 0.25)
    first, carry = policy(obs, policy.initial(), deterministic=True)
    assert first == pytest.approx([1.0])
    second, carry = policy(obs, carry, reward=2.0, cost=3.0, deterministic=True)
    assert second == pytest.approx([1 + 10 * 1 + 200 + 3000])
    assert carry.memory == 2


def test_actions_are_drawn_with_the_given_generator(policy):
    def draws(rng):
        return [float(policy(np.zeros(4), policy.initial(), rng=rng)[0][0]) for _ in range(3)]

    assert draws(np.random.default_rng(1)) == draws(np.random.default_rng(1))
    assert draws(np.random.default_rng(1)) != draws(np.random.default_rng(2))
    assert len({*draws(np.random.default_rng(1)), *draws(None)}) == 6


def test_a_policy_knows_where_it_comes_from(policy):
    info = policy.info
    assert (info["seed"], info["probability"], info["limit"], info["iteration"]) == (0, 0.1, 15.0, 1)
    assert info["environment"]["id"] == "TwoPathEnv-v0"


def test_an_observation_of_another_size_is_a_user_error(policy):
    with pytest.raises(
        UserError, match=r"shape \(3,\), but this policy was trained on TwoPathEnv-v0 with shape \(4,\)"
    ):
        policy(np.zeros(3), policy.initial())


def test_nothing_but_safetensors_is_read(tmp_path):
    path = tmp_path / "policy.safetensors"
    with pytest.raises(UserError, match="there is no policy file"):
        Policy.load(path)

    class Trap:
        def __reduce__(self):
            return (path.with_name("sprung").write_text, ("",))

    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(UserError, match="is not a policy of this version"):
        Policy.load(path)
    assert not path.with_name("sprung").exists()


@pytest.mark.parametrize(("route", "bias"), [(0, -5.0), (1, 5.0)])
def test_evaluation_runs_whole_episodes(fake, tmp_path, route, bias):
    """A policy that always takes one route must have that route's return, and its closed-form outage."""
    env = make("TwoPathEnv-v0")
    save(
        tmp_path / "policy.safetensors",
        build("fake", "fast"),
        env,
        lambda state: {**state, "weight": jnp.float32(bias)},
    )
    policy = Policy.load(tmp_path / "policy.safetensors")
    (totals,) = play_on_device([(policy, 1)], env, 2000, deterministic=True)
    returns, costs = totals.returns, totals.costs
    assert returns == pytest.approx(env.routes[route].reward)
    assert costs.shape == (2000, 1)
    outage = env.routes[route].outage(15)
    # Four standard errors: a false alarm in one of 16,000 seeds.
    assert np.mean(costs > 15) == pytest.approx(outage, abs=4 * (outage * (1 - outage) / 2000) ** 0.5)
