"""The shared PPO core: advantages, losses, and the promises of `init` and `iterate`."""

import ast
import inspect
import itertools
import json
from dataclasses import fields, is_dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from qcrl.algos import hyperparameters
from qcrl.algos.advantages import Links, gae
from qcrl.algos.batch import shuffled
from qcrl.algos.find import algorithms, build, find
from qcrl.algos.losses import policy_loss
from qcrl.algos.ppo_lag import PPOLag
from qcrl.algos.qcpo import QCPO
from qcrl.algos.settings import PPOSettings
from qcrl.constraints import CVaR, Mean, Outage
from qcrl.envs.two_path import TwoPathEnv
from qcrl.errors import UserError
from qcrl.nets.distributions import gaussian_log_prob
from qcrl.nets.network import Inputs
from qcrl.sampling.record import Episodes, Trajectory, Window

ENV = TwoPathEnv()
TINY = dict(
    num_envs=2,
    steps_per_env=8,
    chunk_length=4,
    epochs=2,
    hidden_sizes=(8, 8),
    lstm_size=8,
    window=5,
    driver_window=5,
)
TINY_QCPO = replace(build("qcpo", "tuned"), **TINY, quantiles=5, tail_quantiles=2)


@pytest.mark.parametrize(("decay", "cut"), [(0.0, False), (0.97, True), (0.97, False), (1.0, False)])
def test_gae_equals_a_plain_loop(decay, cut):
    rng = np.random.default_rng(0)
    steps, envs, chunk, discount = 20, 3, 5, 0.9
    signal, value, next_value = rng.normal(size=(3, steps, envs))
    terminated, truncated = rng.random((2, steps, envs)) < 0.15
    continues = ~(terminated | truncated)
    if cut:
        continues[chunk - 1 :: chunk] = False
    expected = np.zeros((steps, envs))
    for env in range(envs):
        later = 0.0
        for t in reversed(range(steps)):
            error = signal[t, env] + discount * next_value[t, env] * (not terminated[t, env]) - value[t, env]
            later = error + discount * decay * later * continues[t, env]
            expected[t, env] = later
    links = Links(jnp.asarray(terminated), jnp.asarray(continues))
    got = gae(jnp.asarray(signal), jnp.asarray(value), jnp.asarray(next_value), links, discount, decay)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_sampled_returns_are_gae_with_decay_one():
    reward = jnp.array([[1.0], [2.0], [4.0], [8.0]])
    value = jnp.array([[5.0], [-3.0], [0.3], [9.0]])
    following = jnp.concatenate([value[1:], value[:1]])
    links = Links(jnp.array([[False], [False], [False], [True]]), jnp.array([[True], [True], [True], [False]]))
    returns = value + gae(reward, value, following, links, 0.5, 1.0)
    np.testing.assert_allclose(returns[:, 0], [1 + 1 + 1 + 1, 2 + 2 + 2, 4 + 4, 8], rtol=1e-5)


@pytest.mark.parametrize(
    ("costs", "limit", "horizon"),
    [([], 10.0, 100), ([0, 0], 10.0, 100), ([0, 0], 0.0, 100), ([2, 3], 10.0, 100 * 5**0.5), ([0, 9], 8.0, 500)],
)
def test_rewards_are_looked_ahead_for_as_far_as_the_limit_is_spent(costs, limit, horizon):
    window = Window.init(5)
    if costs:
        count = len(costs)
        cost = jnp.asarray(costs, jnp.float32)[:, None]
        window = window.add(Episodes(jnp.ones(count, bool), jnp.arange(count), jnp.zeros(count), cost))
    state = TINY_QCPO.init(ENV, jax.random.key(0), [Outage(limit, 0.1)])._replace(window=window)
    far = replace(TINY_QCPO, budget_discount=0.998).reward_discount(ENV, state)
    assert float(1 / (1 - far)) == pytest.approx(horizon, rel=1e-3)
    assert TINY_QCPO.reward_discount(ENV, state) == 0.99
    assert replace(TINY_QCPO, discount=0.999, budget_discount=0.998).reward_discount(ENV, state) == 0.999


def test_policy_loss_is_clipped_jointly_or_apart():
    ratio, reward, cost = jnp.array([1.3, 0.8]), jnp.array([1.0, 2.0]), jnp.array([-1.0, 3.0])
    joint = policy_loss(ratio, reward, [cost], [jnp.float32(0.5)], 0.1, "joint")
    # Advantages 1.5 and 0.5: min(1.3, 1.1) * 1.5 and min(0.8, 0.9) * 0.5.
    assert joint == pytest.approx(-(1.65 + 0.4) / 2)
    apart = policy_loss(ratio, reward, [cost], [jnp.float32(0.5)], 0.1, "separate")
    # Reward min(1.3, 1.1), min(1.6, 1.8); cost max(-1.3, -1.1), max(2.4, 2.7).
    assert apart == pytest.approx(-((1.1 + 0.5 * 1.1) + (1.6 - 0.5 * 2.7)) / 2)


def test_log_prob_is_that_of_a_normal_law():
    action, mean, std = np.array([0.3, -1.0]), np.array([0.1, 0.5]), np.array([0.5, 2.0])
    expected = scipy.stats.norm(mean, std).logpdf(action).sum()
    assert gaussian_log_prob(jnp.asarray(action), jnp.asarray(mean), jnp.log(std)) == pytest.approx(expected, rel=1e-5)


def train(algorithm, iterations, constraint=Outage(15, 0.1)):  # noqa: B008
    """States and metrics after each iteration of seed 0, one call at a time, and how often `iterate` was compiled."""
    init = jax.jit(lambda key: algorithm.init(ENV, key, [constraint]))
    iterate = jax.jit(lambda state: algorithm.iterate(ENV, state))
    states, metrics = [init(jax.random.key(0))], []
    for _ in range(iterations):
        state, reported = iterate(states[-1])
        states.append(state)
        metrics.append(reported)
    return states, metrics, iterate._cache_size()


@pytest.fixture(scope="module")
def qcpo_run():
    return train(TINY_QCPO, 3)


@pytest.fixture(scope="module")
def ppo_lag_run():
    return train(replace(build("ppo_lag", "authors"), **TINY), 3, Mean(15))


@pytest.fixture(scope="module")
def late_run():
    """With costs one step late and no LSTM, gradient steps need chunks all the same."""
    changes = dict(TINY, lstm_size=0)
    return train(replace(build("qcpo", "authors"), **changes, quantiles=5, tail_quantiles=2), 3)


def test_what_a_batch_is_cut_into():
    late, prompt = (replace(build("qcpo", "authors"), lstm_size=0, late_cost=late) for late in (True, False))
    assert (late.pieces, prompt.pieces) == (120, 12_000)
    assert build("qcpo", "authors").late_cost
    assert not build("qcpo", "tuned").late_cost


@pytest.mark.parametrize("run", ["qcpo_run", "ppo_lag_run", "late_run"])
def test_iterate_compiles_once_and_counts(run, request):
    states, metrics, compilations = request.getfixturevalue(run)
    assert compilations == 1
    kinds = jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), states[0])
    for iteration, state in enumerate(states):
        assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state) == kinds
        assert (state.iteration, state.env_steps) == (iteration, 16 * iteration)
        # The first batch only feeds the statistics.
        same = jax.tree.all(
            jax.tree.map(lambda a, b: bool(jnp.all(a == b)), *(x.learner.params for x in (state, states[0])))
        )
        assert same == (iteration <= 1)
    assert metrics[-1].episodes.finished.sum() == 4
    required = {"episode_return", "episode_cost", "cost_quantile", "outage", "multiplier", "alive", "env_steps"}
    assert required <= metrics[-1].scalars.keys()
    assert metrics[-1].scalars["outage"] == pytest.approx(np.mean(np.asarray(states[-1].window.cost) > 15))


def test_the_learning_rate_halves(qcpo_run):
    before, after = qcpo_run[0][-2:]
    halving = replace(TINY_QCPO, learning_rate_halving=float(before.iteration))
    now = before.learning_rate * 0.5 ** (before.iteration / TINY_QCPO.learning_rate_halving)
    twice = before._replace(learning_rate=2 * now)
    got, _ = jax.jit(lambda state: halving.iterate(ENV, state))(twice)
    for one, other in zip(jax.tree.leaves(got.learner.params), jax.tree.leaves(after.learner.params)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_lanes_are_independent_and_equal_single_runs(qcpo_run):
    @jax.jit
    @jax.vmap
    def train_lanes(key, limit, probability, rate):
        state = TINY_QCPO.init(ENV, key, [Outage(limit, probability)])._replace(learning_rate=rate)
        return jax.lax.scan(lambda state, _: TINY_QCPO.iterate(ENV, state), state, length=3)

    def lanes(*settings):
        seeds, limits, probabilities, rates = zip(*settings)
        keys = jnp.stack([jax.random.PRNGKey(seed) for seed in seeds])
        return train_lanes(keys, *(jnp.array(x, jnp.float32) for x in (limits, probabilities, rates)))

    plain, other, broken = (0, 15, 0.1, TINY_QCPO.learning_rate), (1, 10, 0.5, 1e-3), (0, 15, 0.005, jnp.inf)
    states, metrics = lanes(plain, other, broken)
    for together, single in zip(jax.tree.leaves(states), jax.tree.leaves(qcpo_run[0][-1])):
        np.testing.assert_allclose(together[0], single, rtol=1e-3, atol=1e-5)
    again, _ = lanes(plain, broken, broken)
    for first, second in zip(jax.tree.leaves(states), jax.tree.leaves(again)):
        np.testing.assert_array_equal(first[0], second[0])
    # The broken lane falls in its first gradient step and stays as it was before; the others go on.
    np.testing.assert_array_equal(states.alive, [True, True, False])
    np.testing.assert_array_equal(states.iteration, [3, 3, 1])
    np.testing.assert_array_equal(metrics.scalars["alive"][2], [True, False, False])
    assert not metrics.episodes.finished[2, 1:].any()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(states.learner.params))


def reward_errors(algorithm, terminated, truncated):
    """TD errors of a batch without rewards, under a value of 1 everywhere."""
    algorithm = replace(algorithm, gae_lambda=0.0)
    shape = terminated.shape
    zeros, obs, action = jnp.zeros(shape), jnp.zeros((*shape, 4)), jnp.zeros((*shape, 1))
    cost = zeros[..., None]
    inputs = Inputs(obs, action, zeros, cost, cost, zeros)
    memory = algorithm.network(ENV).initial_memory(shape[0] // algorithm.chunk_length, shape[1])

    @jax.jit
    def errors(terminated, truncated):
        state = algorithm.init(ENV, jax.random.key(0), [Outage(15, 0.1)])
        params = jax.tree.map(jnp.zeros_like, state.learner.params)
        params["heads"]["bias"] = params["heads"]["bias"].at[ENV.action_size].set(1.0)
        trajectory = Trajectory(inputs, zeros > 0, action, zeros, cost, terminated, truncated, obs, cost, memory)
        state = state._replace(learner=state.learner._replace(params=params))
        batch, _ = algorithm._prepare(ENV, state, trajectory, state.learner.normaliser, algorithm.discount)
        return algorithm._from_chunks(batch.reward_advantage)

    return errors(terminated, truncated)


def test_what_follows_a_time_limit_counts_only_if_asked_for():
    shape = (TINY_QCPO.steps_per_env, TINY_QCPO.num_envs)
    terminated, truncated = jnp.zeros((2, *shape), bool).at[0, 3, 0].set(True).at[1, 5, 1].set(True)
    onward, nothing = TINY_QCPO.discount - 1, -1.0
    expected = np.full(shape, onward)
    expected[3, 0] = nothing
    bootstrapped = reward_errors(replace(TINY_QCPO, time_limit="bootstrap"), terminated, truncated)
    np.testing.assert_allclose(bootstrapped, expected, atol=1e-5)
    expected[5, 1] = nothing
    np.testing.assert_allclose(reward_errors(TINY_QCPO, terminated, truncated), expected, atol=1e-5)


def test_acting_and_judging_outside_training(qcpo_run):
    algorithm, state = TINY_QCPO, qcpo_run[0][-1]
    policy, memory = algorithm.policy_state(ENV, state), algorithm.initial_memory(ENV)
    arguments = ENV, policy, Inputs.first(state.actors.inputs.obs[0], ENV.action_size, 1), memory
    action, after = algorithm.act(*arguments, jax.random.key(0), deterministic=True)
    again, _ = algorithm.act(*arguments, jax.random.key(1), deterministic=True)
    noisy, _ = algorithm.act(*arguments, jax.random.key(1), deterministic=False)
    assert action == again
    assert action != noisy
    assert after.hidden.shape == (8,)
    assert not jnp.allclose(after.hidden, memory.hidden)
    estimate = algorithm.critic(*arguments)
    outputs, _ = algorithm.network(ENV).step(policy.params, policy.normaliser, *arguments[2:])
    scaled = algorithm.read(outputs).cost
    np.testing.assert_allclose(estimate.quantiles, 10 * scaled.quantiles, rtol=1e-5)
    assert estimate.quantile(0.9) == pytest.approx(10 * float(scaled.quantile(0.9)), rel=1e-5)
    assert estimate.tail.quantile(0.99) == pytest.approx(10 * float(scaled.tail.quantile(0.99)), rel=1e-5)


def test_every_algorithm_of_the_paper_has_every_preset():
    for name in ("qcpo", "ppo_lag", "wcsac", "wcsac_weibull", "cvar_pg"):
        assert {"paper", "authors", "tuned", "fast"} <= find(name).presets.keys()
    for name, algorithm in algorithms().items():
        assert find(name) is algorithm
        assert algorithm.presets
        for kind in algorithm.presets:
            assert type(build(name, kind)) is algorithm
            hash(build(name, kind))
            written = json.dumps(hyperparameters.to_json(build(name, kind)))
            assert json.dumps(hyperparameters.to_json(hyperparameters.from_json(json.loads(written)))) == written
    paper = build("qcpo", "paper")
    assert (paper.quantiles, paper.tail_quantiles, paper.discount, paper.learning_rate) == (25, 8, 0.99, 1e-4)
    assert (paper.clip, paper.weight_clip, paper.integral_gain, paper.epochs) == (0.1, 0.5, 0.1, 8)
    assert paper.steps_per_iteration == 12_000
    assert paper.steps_per_iteration // paper.chunk_length == 120


def test_every_field_is_explained():
    kinds = {kind for algorithm in algorithms().values() for kind in algorithm.__mro__ if is_dataclass(kind)}
    assert {PPOSettings, QCPO, PPOLag} < kinds
    for kind in kinds:
        body = ast.parse(inspect.getsource(kind)).body[0].body
        for field, after in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign):
                assert isinstance(after, ast.Expr), f"{field.target.id} has no docstring"
    assert {field.name for field in fields(PPOSettings)} <= {field.name for field in fields(QCPO)}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Outage(15, 0.0), "probability is 0.0"),
        (lambda: Outage(15, 1.0), "between 0 and 1"),
        (lambda: Outage(-1, 0.1), "limit is -1"),
        (lambda: Outage(float("nan"), 0.1), "finite"),
        (lambda: Outage("x", 0.1), "'x'"),
        (lambda: CVaR(15, 2.0), "level is 2.0"),
        (lambda: Mean(float("inf")), "finite"),
        (lambda: build("qcpo", "quick"), "paper, authors, tuned, fast"),
        (lambda: build("trpo", "fast"), "ppo_lag, qcpo"),
        (lambda: QCPO(driver="guess"), "driver is 'guess', but must be one of quantile, outage"),
        (lambda: QCPO(steps_per_env=50), "multiple of chunk_length"),
        (lambda: QCPO(minibatches=7), "divide"),
        (lambda: QCPO(skip=True, lstm_size=64), "hidden_sizes"),
        (lambda: QCPO(lstm_size=0), "cost_input is lstm, but lstm_size is 0"),
        (lambda: QCPO(cost_input="none", late_cost=True), "late_cost is true, but cost_input is none"),
        (lambda: QCPO(window=10, driver_window=12), "driver_window is 12"),
        (lambda: QCPO(clipping="both"), "clipping is 'both', but must be one of joint, separate"),
        (lambda: QCPO(kappa=-1.0), "kappa is -1.0"),
        (lambda: QCPO(discount=1.5), "discount is 1.5"),
        (lambda: QCPO(learning_rate=0.0), "learning_rate is 0.0"),
        (lambda: QCPO(learning_rate_halving=0.0), "learning_rate_halving is 0.0"),
        (lambda: QCPO(relative_gains=True), "initial_multiplier is 0.0, but with relative_gains"),
        (lambda: QCPO(error_clip=-1.0), "error_clip is -1.0, but must be greater than 0"),
        (lambda: QCPO(clip=0.0), "clip is 0.0"),
        (lambda: QCPO(integral_gain=-1.0), "integral_gain is -1.0, but must be at least 0"),
        (lambda: QCPO(weight_clip=-1.0), "weight_clip is -1.0, but must be at least 0"),
        (lambda: QCPO(integral_power=1.5), "integral_power is 1.5"),
        (lambda: QCPO(target_margin=1.0), "target_margin is 1.0, but must be at least 0 and less than 1"),
        (lambda: QCPO(tail_quantiles=30), "tail_quantiles is 30"),
        (lambda: PPOLag(num_envs=0), "num_envs is 0"),
    ],
)
def test_mistakes_are_named(make, says):
    with pytest.raises(UserError, match=says):
        make()


def test_every_order_holds_every_number_once_and_is_random():
    orders = np.asarray(shuffled(jax.random.key(0), 400, 60))
    np.testing.assert_array_equal(np.sort(orders), np.tile(np.arange(60), (400, 1)))
    # The first of two minibatches holds each number half of the time, and each pair almost a quarter.
    first = np.zeros((400, 60))
    np.put_along_axis(first, orders[:, :30], 1.0, axis=1)
    assert np.abs(first.mean(axis=0) - 0.5).max() < 5 * 0.5 / 400**0.5
    together = (first.T @ first / 400)[np.triu_indices(60, 1)]
    assert abs(together.mean() - 0.5 * 29 / 59) < 1e-6
    assert np.abs(together - 0.5 * 29 / 59).max() < 6 * 0.43 / 400**0.5
