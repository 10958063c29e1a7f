"""The multiplier: what drives it, how it follows, and the window of episodes that it looks at."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qcrl.algos.find import build
from qcrl.algos.multiplier import Gains, Multiplier, episode_window
from qcrl.constraints import Mean, Outage, Steering
from qcrl.envs.two_path import TwoPathEnv
from qcrl.sampling.record import Episodes, Window


def test_multiplier_integrates_the_error():
    multiplier, value = Multiplier.init(0.0), 0.0
    for statistic in (20.0, 30.0, 3.0, -40.0, 25.0):
        multiplier = multiplier.update(Steering(jnp.float32(statistic), jnp.float32(15.0)), Gains(0.0, 0.1, 0.95))
        value = max(0.0, value + 0.1 * (statistic - 15.0))
        assert multiplier.value == pytest.approx(value, rel=1e-5)


def test_multiplier_follows_the_pi_rule():
    costs, limit, gains = [20.0, 30.0, 3.0, 18.0, 40.0], 15.0, Gains(0.3, 0.1, 0.95)
    multiplier = Multiplier.init(0.0)
    integral, error_mean = 0.0, 0.0
    for cost in costs:
        integral = max(0.0, integral + 0.1 * (cost - limit))
        error_mean = 0.95 * error_mean + 0.05 * (cost - limit)
        expected = max(0.0, 0.3 * error_mean + integral)
        multiplier = multiplier.update(Steering(jnp.float32(cost), jnp.float32(limit)), gains)
        assert multiplier.value == pytest.approx(expected, rel=1e-5)


def test_multiplier_can_bound_the_error():
    multiplier = Multiplier.init(1.0)
    for statistic, value in [(0.9, 1.1), (0.0, 1.0), (0.25, 1.05)]:
        multiplier = multiplier.update(Steering(jnp.float32(statistic), jnp.float32(0.2)), Gains(0.0, 1.0, clip=0.1))
        assert multiplier.value == pytest.approx(value, rel=1e-5)


def test_relative_gains_move_the_multiplier_by_factors():
    gains = Gains(2.0, 0.5, smoothing=0.8, clip=0.1, relative=True)
    small, large = Multiplier.init(0.5), Multiplier.init(40.0)
    error_mean, factor = 0.0, 1.0
    for statistic in (0.9, 0.25, 0.1, 0.12):
        small, large = (
            each.update(Steering(jnp.float32(statistic), jnp.float32(0.2)), gains) for each in (small, large)
        )
        error = max(-0.1, min(0.1, statistic - 0.2))
        error_mean = 0.8 * error_mean + 0.2 * error
        factor *= np.exp(0.5 * error)
        assert small.value == pytest.approx(0.5 * factor * (1 + 2 * error_mean), rel=1e-5)
        assert large.value == pytest.approx(80 * float(small.value), rel=1e-5)


def test_the_integral_gain_counts_times_a_power_of_the_multiplier():
    gains = Gains(0.0, 0.5, clip=0.1, relative=True, power=0.5)
    for start in (4.0, 25.0):
        for statistic, error in ((0.9, 0.1), (0.22, 0.02), (0.2, 0.0), (0.0, -0.1)):
            moved = Multiplier.init(start).update(Steering(jnp.float32(statistic), jnp.float32(0.2)), gains)
            assert moved.value == pytest.approx(start + start**0.5 * np.expm1(0.5 * error), rel=1e-5)


def test_settings_reach_the_multiplier():
    finished = jnp.ones(100, bool)
    costs = jnp.where(jnp.arange(100) < 12, 20.0, 0.0)
    window = Window.init(100).add(Episodes(finished, jnp.arange(100), costs, costs[:, None]))
    env, tuned = TwoPathEnv(), replace(build("qcpo", "tuned"), hidden_sizes=(2,))
    state = tuned.init(env, jax.random.key(0), [Outage(15.0, 0.1)])._replace(window=window)
    state = state._replace(learner=state.learner._replace(multiplier=Multiplier.init(4.0)))
    error = 0.12 - 0.95 * 0.1
    integral = 4 + 2 * np.expm1(0.25 * error)
    assert tuned._steer(env, state)[0].value == pytest.approx(integral * (1 + 3 * 0.2 * error), rel=1e-5)
    plain = replace(tuned, relative_gains=False, integral_power=1.0, target_margin=0.0, error_clip=0.01)
    assert plain._steer(env, state)[0].value == pytest.approx(4 + 0.25 * 0.01 + 3 * 0.2 * 0.01, rel=1e-6)


def test_drivers():
    costs = jnp.array([10.0, 20.0, 30.0, 40.0, 500.0])
    valid = jnp.array([True, True, True, True, False])
    asked, arguments = Outage(25.0, 0.25), (costs, valid, 10.0)
    quantile, outage = (asked.steer(name, *arguments) for name in ("quantile", "outage"))
    mean = Mean(25.0).steer("mean", *arguments)
    assert (quantile.statistic, quantile.target) == (4.0, 2.5)
    assert (outage.statistic, outage.target) == (0.5, 0.25)
    assert (mean.statistic, mean.target) == (2.5, 2.5)


def test_window_keeps_the_last_episodes():
    window, everything = Window.init(4), []
    rng = np.random.default_rng(0)
    for size in (1, 3, 0, 6, 2):
        finished = np.zeros(8, bool)
        finished[rng.choice(8, size, replace=False)] = True
        cost = rng.random(8).astype(np.float32)
        everything += list(cost[finished])
        window = window.add(
            Episodes(jnp.asarray(finished), jnp.zeros(8, jnp.int32), -jnp.asarray(cost), jnp.asarray(cost)[:, None])
        )
        for count in (1, 2, 4):
            recent = np.asarray(window.cost)[:, 0][np.asarray(window.recent(count))]
            np.testing.assert_allclose(np.sort(recent), np.sort(everything[-count:]))
    assert window.seen == 12


def test_window_is_widened_for_rare_outages():
    assert [episode_window(100, p) for p in (0.5, 0.1, 0.02, 0.01, 0.005)] == [100, 100, 100, 200, 400]
