"""WCSAC with both tails: their CVaR, the variance critic, the two routes, and a run that is resumed or breaks."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.integrate import quad
from scipy.special import gamma, k1

import qcrl
from qcrl import CVaR
from qcrl.algos.find import build
from qcrl.algos.wcsac import WCSAC, moments, variance_target, wasserstein
from qcrl.envs import make
from qcrl.envs.two_path import TwoPathEnv
from qcrl.nets import soft
from qcrl.sampling.play.device import play_on_device
from qcrl.tails import Gaussian, Weibull

ENV, LEVEL = TwoPathEnv(), 0.1
LIMITS = 15.0, 18.0, 45.0
SMALL = {
    "num_envs": 8,
    "steps_per_env": 40,
    "steps_per_update": 4,
    "batch_size": 64,
    "replay_size": 8_000,
    "start_steps": 200,
    "hidden_sizes": (32, 32),
}


def mean_beyond(law, mass):
    return quad(law.isf, 0, mass)[0] / mass


@pytest.mark.parametrize("mass", [0.02, 0.1, 0.5])
def test_cvar_from_moments_is_the_integral_over_the_tail(mass):
    shapes = np.array([0.4, 0.7, 1.0, 2.5, 8.0])
    laws = [scipy.stats.weibull_min(shape, scale=3.0) for shape in shapes]
    mean, variance = (jnp.asarray([getattr(law, name)() for law in laws], jnp.float32) for name in ("mean", "var"))
    # The level is a traced scalar: lanes with several of them are one program.
    weibull = jax.jit(lambda mass: Weibull.from_moments(mean, variance).cvar(mass))(mass)
    np.testing.assert_allclose(weibull, [mean_beyond(law, mass) for law in laws], rtol=1e-3)
    gaussian = jax.jit(lambda mass: Gaussian.from_moments(mean, variance).cvar(mass))(mass)
    exact = [mean_beyond(scipy.stats.norm(law.mean(), law.std()), mass) for law in laws]
    np.testing.assert_allclose(gaussian, exact, rtol=1e-4)


def test_weibull_has_the_moments_it_was_given():
    # mean = l Gamma(1 + 1/k), variance = l^2 (Gamma(1 + 2/k) - Gamma(1 + 1/k)^2), at k = 1/2, 1, 2, 20
    means = jnp.array([2.0, 3.0, np.pi**0.5 / 2, 100 * gamma(1.05)], jnp.float32)
    variances = jnp.array([20.0, 9.0, 1 - np.pi / 4, 1e4 * (gamma(1.1) - gamma(1.05) ** 2)], jnp.float32)
    tail = Weibull.from_moments(means, variances)
    np.testing.assert_allclose(tail.shape, [0.5, 1, 2, 20], rtol=1e-4)
    np.testing.assert_allclose(tail.scale, [1, 3, 1, 100], rtol=1e-4)


def test_weibull_from_moments_has_the_right_gradient():
    def exact(mean, variance):
        spread = lambda z: gamma(1 + 2 * z) / gamma(1 + z) ** 2 - 1 - variance / mean**2
        inverse = scipy.optimize.brentq(spread, 0.05, 4)
        return mean_beyond(scipy.stats.weibull_min(1 / inverse, scale=mean / gamma(1 + inverse)), LEVEL)

    mean, variance, step = 2.0, 6.0, 1e-3
    slopes = [
        (exact(mean + step, variance) - exact(mean - step, variance)) / (2 * step),
        (exact(mean, variance + step) - exact(mean, variance - step)) / (2 * step),
    ]
    cvar = lambda mean, variance: Weibull.from_moments(mean, variance).cvar(LEVEL)
    assert jax.grad(cvar, (0, 1))(mean, variance) == (pytest.approx(slopes[0], 1e-3), pytest.approx(slopes[1], 1e-3))


@pytest.mark.parametrize("mean", [-3.0, 0.0, 1e-6, 1e3])
@pytest.mark.parametrize("variance", [1e-8, 1.0, 1e8])
def test_weibull_stays_finite_whatever_the_critics_say(mean, variance):
    cvar = lambda mean, variance: Weibull.from_moments(mean, variance).cvar(LEVEL)
    value, slopes = jax.value_and_grad(cvar, (0, 1))(mean, variance)
    assert np.isfinite([value, *slopes]).all()
    # The worst tenth of a cost that is never negative cannot cost more than ten times the mean.
    assert 0 <= value <= max(mean, 1e-4) / LEVEL * (1 + 1e-4)


def test_variance_recursion_has_the_exact_variance_as_fixed_point():
    """Four states in a row, at each of which a cost may fall due and the episode may end; all paths are listed."""
    discount, costs, due, stop = 0.9, np.array([1.0, 2.0, 0.5, 3.0]), 0.3, 0.2

    def paths(state):
        """(probability, discounted cost) of every path from here on."""
        for pays, chance in ((1, due), (0, 1 - due)):
            cost = pays * costs[state]
            if state == 3:
                yield chance, cost
                continue
            yield chance * stop, cost
            for later_chance, later in paths(state + 1):
                yield chance * (1 - stop) * later_chance, cost + discount * later

    exact = []
    for state in range(4):
        chances, totals = np.array(list(paths(state))).T
        mean = chances @ totals
        exact.append((mean, chances @ (totals - mean) ** 2))
    exact_mean, exact_variance = np.array(exact).T

    mean, variance = np.zeros(5), np.zeros(5)
    outcomes = [(pays, ends) for pays in (0, 1) for ends in (0, 1)]
    chance = np.array([(due if pays else 1 - due) * (stop if ends else 1 - stop) for pays, ends in outcomes])
    pays, goes_on = np.array(outcomes).T[0], 1 - np.array(outcomes).T[1]
    for _ in range(6):
        for state in range(4):
            after = goes_on * mean[state + 1], goes_on * variance[state + 1]
            cost = pays * costs[state]
            mean[state] = chance @ (cost + discount * after[0])
            target = variance_target(cost, mean[state], *after, discount)
            variance[state] = chance @ np.asarray(target)
    np.testing.assert_allclose(mean[:4], exact_mean, rtol=1e-5)
    np.testing.assert_allclose(variance[:4], exact_variance, rtol=1e-5)


def test_wasserstein_distance_by_hand():
    assert wasserstein(jnp.float32(9.0), jnp.float32(4.0)) == pytest.approx((3 - 2) ** 2)
    assert jax.grad(wasserstein)(4.0, 4.0) == pytest.approx(0.0, abs=1e-6)


def test_limit_is_discounted_as_costs_that_fall_due_evenly():
    assert WCSAC().discounted_limit(make("DynamicEnv-v0"), 15.0) == pytest.approx(1.49994, rel=1e-5)


def train(algo, out, limits=LIMITS, steps=12_800, **options):
    return qcrl.train(algo, ENV, [CVaR(limit, LEVEL) for limit in limits], steps=steps, out=out, **SMALL | options)


@pytest.fixture(scope="module", params=["wcsac", "wcsac_weibull"])
def run(request, tmp_path_factory):
    return train(request.param, tmp_path_factory.mktemp("runs") / request.param, preset="tuned")


def test_it_takes_the_best_route_whose_cvar_is_allowed(run):
    """CVaR at 0.1 is 39.6 on route 1 and 15.5 on route 2: neither keeps 15, only route 2 keeps 18, both keep 45."""
    cvar = [mean_beyond(scipy.stats.weibull_min(route.shape, scale=route.scale), LEVEL) for route in ENV.routes]
    assert 15 < cvar[1] < 18 < cvar[0] < 45
    returns = [play_on_device([(run.policy(limit=limit), 1)], ENV, 1000)[0].returns for limit in LIMITS]
    share = [(one > 0.9).mean() for one in returns]  # route 1 pays 1.0, route 2 pays 0.8
    assert share[0] < 0.02
    assert share[1] < 0.02
    assert share[2] > 0.6  # not all: the entropy that is asked for has its price
    last = run.metrics["multiplier"][-3:]
    assert last[0] > 10  # no route is good enough for 15
    assert last[2] < 0.1


def test_safety_critics_know_the_routes(run):
    """Costs fall due after three steps: the mean is gamma^3 12.

    The variance critic's loss is least where sqrt(v) is the mean of sqrt(max(0, c^2 - m^2)). For an exponential cost of
    mean 12 that is 12 K1(1), a modified Bessel function; the true standard deviation is 12.
    """
    policy = run.policy(limit=45.0)
    values = soft.q_values(policy.state.critics, ENV.reset(jax.random.key(0))[1], jnp.array([-0.7]))
    mean, variance = moments(values)
    assert mean == pytest.approx(0.99**3 * 12, rel=0.15)
    assert jnp.sqrt(variance) == pytest.approx(0.99**3 * 12 * k1(1), rel=0.25)


@pytest.mark.parametrize("algo", ["wcsac", pytest.param("wcsac_weibull", marks=pytest.mark.large)])
def test_resuming_continues_bit_for_bit(algo, tmp_path):
    """With a replay that has wrapped around before the training is stopped."""
    short = {"preset": "tuned", "replay_size": 500}
    run = train(algo, tmp_path / "whole", steps=1_280, **short)
    train(algo, tmp_path / "parts", steps=640, **short)
    parts = train(algo, tmp_path / "parts", steps=1_280, resume=True, **short)
    for name in ("seed0-p0.1-d15.safetensors", "seed0-p0.1-d45.safetensors"):
        assert (parts.path / "policies" / name).read_bytes() == (run.path / "policies" / name).read_bytes()
    assert (parts.path / "episodes.csv").read_bytes() == (run.path / "episodes.csv").read_bytes()


def test_a_lane_that_breaks_is_frozen(tmp_path, capsys):
    rates = [1e-3, 2e-3, 1e30]
    run = train("wcsac", tmp_path / "run", limits=[15.0], steps=1_280, preset="tuned", learning_rate=rates)
    assert "replay memory: 3 x 0.00048 GB = 0.00144 GB" in capsys.readouterr().err
    assert len(run.frozen) == 1
    assert run.metrics["iteration"].tolist()[-2:] == [4, 4]
    assert np.isfinite(run.metrics["value_loss"]).all()


def test_damping_may_be_kept_from_rewarding_costs():
    """A route 2 with both the lower cost and the higher reward is the better one; damping alone says otherwise."""
    algorithm, limit = build("wcsac", "paper"), CVaR(45.0, 0.1)
    params = {"safety_weight": jnp.zeros(())}
    values = jnp.zeros((4, 2))
    slope = lambda algorithm: jax.grad(
        lambda cost: algorithm.safety(ENV, params, values, values.at[2].set(cost), limit)[0]["safety_loss"]
    )(1.0)
    assert slope(algorithm) < -100
    assert slope(replace(algorithm, reward_costs=False)) == 0


def test_scales_that_follow_the_task_change_neither_the_limit_nor_what_is_reported():
    """Costs times 100, and the limit with them: the same losses, and figures of 100 times the size."""
    small = {"num_envs": 2, "steps_per_env": 4, "block_length": 4, "hidden_sizes": (8,), "replay_size": 100}
    algorithm = replace(WCSAC.presets["host"], **small)
    found = []
    for unit in (1.0, 100.0):
        state = algorithm.init(ENV, jax.random.key(0), (CVaR(unit * 15.0, 0.1),))
        scales = state.learner.scales
        sampled = unit * jnp.abs(jnp.sin(jnp.arange(40.0).reshape(20, 2)))
        first = jnp.zeros((20, 2), bool)
        cost = scales.cost.update(sampled, first, 0.0)
        assert cost.unit == pytest.approx(unit * float(jnp.std(jnp.abs(jnp.sin(jnp.arange(40.0))))), rel=1e-4)
        values = jnp.array([[1.0], [1.0], [20.0], [2.0]])
        limit = state.constraints[0]
        losses, figures = algorithm.safety(ENV, state.learner.params, values, values, limit, cost.unit)
        found.append((float(losses["safety_loss"]), float(figures["cvar"]) / unit))
    assert found[0] == pytest.approx(found[1], rel=1e-4)
