"""Exact binomial statements against scipy's own and against simulation."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from qcrl import UserError
from qcrl.stats import (
    bootstrap_interval,
    cvar,
    episodes_needed,
    interquartile_mean,
    mean_bound,
    outage_bound,
    outage_interval,
    outage_lower_bound,
    quantile_interval,
)


@pytest.mark.parametrize(("outages", "episodes"), [(0, 10), (3, 10), (10, 10), (84, 1000), (1, 1)])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_exact_intervals_are_those_of_scipy(outages, episodes, confidence):
    test = scipy_stats.binomtest(outages, episodes)
    expected = test.proportion_ci(confidence, method="exact")
    assert outage_interval(outages, episodes, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)
    one_sided = scipy_stats.binomtest(outages, episodes, alternative="less").proportion_ci(confidence, method="exact")
    assert outage_bound(outages, episodes, confidence) == pytest.approx(one_sided.high, abs=1e-9)
    other = scipy_stats.binomtest(outages, episodes, alternative="greater").proportion_ci(confidence, method="exact")
    assert outage_lower_bound(outages, episodes, confidence) == pytest.approx(other.low, abs=1e-9)


def test_ten_clean_episodes_only_show_an_outage_below_a_quarter():
    assert outage_bound(0, 10) == pytest.approx(1 - 0.05**0.1)  # .2589


def test_interval_and_bound_cover_at_their_level():
    """4,000 repetitions: what is correct fails this with probability below 1e-6 (coverage is at least 0.95)."""
    outages = np.random.default_rng(0).binomial(200, 0.1, size=4000)
    low, high = np.transpose([outage_interval(k, 200) for k in range(201)])
    bound = np.array([outage_bound(k, 200) for k in range(201)])
    alarm = scipy_stats.binom.ppf(1e-6, 4000, 0.95) / 4000
    assert np.mean((low[outages] <= 0.1) & (high[outages] >= 0.1)) >= alarm
    assert np.mean(bound[outages] >= 0.1) >= alarm


@pytest.mark.parametrize(("probability", "episodes"), [(0.1, 29), (0.05, 59), (0.01, 299)])
def test_episodes_needed_without_outages_has_a_closed_form(probability, episodes):
    """No outage in n episodes certifies p at 95% from (1 - p)^n <= .05 on."""
    assert episodes_needed(probability) == episodes


def test_more_episodes_than_anyone_will_run_are_refused():
    with pytest.raises(UserError, match=r"so close to the probability .* that about 6e[+]11 episodes"):
        episodes_needed(0.1, expected=0.099999)


@pytest.mark.parametrize(("probability", "expected", "power"), [(0.1, 0.05, 0.8), (0.2, 0.1, 0.9), (0.05, 0.01, 0.5)])
def test_episodes_needed_is_the_smallest_that_has_the_power(probability, expected, power):
    def power_of(episodes):
        certifying = [k for k in range(episodes // 4) if outage_bound(k, episodes) <= probability]
        return scipy_stats.binom.cdf(max(certifying), episodes, expected) if certifying else 0.0

    needed = episodes_needed(probability, expected=expected, power=power)
    assert power_of(needed) >= power
    assert max(power_of(n) for n in range(max(1, needed - 40), needed)) < power


def test_episodes_needed_close_to_the_target():
    """The normal approximation says 1,302; power saw-tooths around .8 between 1,290 and 1,365 episodes."""
    assert episodes_needed(0.1, expected=0.08) == 1290


def test_quantile_intervals_are_those_of_scipy():
    """`quantile_test` takes the same order statistics; where there is none it says infinity, too."""
    costs = np.random.default_rng(0).exponential(size=200)
    for level in (0.5, 0.8, 0.9, 0.98):
        interval = scipy_stats.quantile_test(costs, p=level).confidence_interval(0.95)
        assert quantile_interval(costs, level) == pytest.approx((interval.low, interval.high))
    assert quantile_interval(costs[:20], 0.9)[1] == np.inf


def test_quantile_intervals_cover_at_their_level():
    """4,000 repetitions of 150 exponential costs; a correct implementation fails this with probability below 1e-6."""
    samples = np.random.default_rng(0).exponential(size=(4000, 150))
    low, high = np.transpose([quantile_interval(costs, 0.9) for costs in samples])
    assert np.mean((low <= np.log(10)) & (np.log(10) <= high)) >= scipy_stats.binom.ppf(1e-6, 4000, 0.95) / 4000


@pytest.mark.parametrize(("mass", "expected"), [(0.2, 9.5), (0.25, (10 + 9 + 0.5 * 8) / 2.5), (0.05, 10.0)])
def test_cvar_is_the_mean_of_the_worst(mass, expected):
    assert cvar(np.arange(1.0, 11.0), mass) == pytest.approx(expected)


def test_the_interquartile_mean_forgets_both_ends():
    assert interquartile_mean([-1000, 1, 2, 3, 4, 5, 6, 1000]) == 3.5


def test_bootstrap_intervals_over_seeds():
    """For the mean of many values: the normal interval, mean +- 1.96 standard errors."""
    values = np.random.default_rng(0).normal(5, 2, size=400)
    error = 1.96 * values.std() / 20
    assert bootstrap_interval(values) == pytest.approx((values.mean() - error, values.mean() + error), abs=0.02)
    low, high = bootstrap_interval([1.0, 2, 3, 4, 100], interquartile_mean)
    assert 1 <= low < 3 < high


@pytest.mark.parametrize(
    "call",
    [
        lambda: outage_interval(1, 0),
        lambda: outage_interval(11, 10),
        lambda: outage_bound(-1, 10),
        lambda: outage_bound(1, 10, confidence=1.0),
        lambda: episodes_needed(0.0),
        lambda: episodes_needed(0.1, expected=0.1),
        lambda: episodes_needed(0.1, power=1.5),
        lambda: outage_lower_bound(1, 0),
        lambda: quantile_interval(np.ones(3), 1.0),
        lambda: cvar(np.ones(3), 0.0),
        lambda: bootstrap_interval([1.0]),
    ],
)
def test_impossible_questions_are_user_errors(call):
    with pytest.raises(UserError):
        call()


def test_the_bound_of_a_mean_holds_and_is_not_far_off():
    rng = np.random.default_rng(0)
    for draw, mean, most in (
        (lambda n: 10 * (rng.random(n) < 0.05), 0.5, 10.0),
        (lambda n: rng.random(n), 0.5, 1.0),
        (lambda n: np.minimum(rng.exponential(8, n), 1000), 8.0, 1000.0),
    ):
        bounds = np.array([mean_bound(draw(500), most) for _ in range(200)])
        # Two hundred bounds of 95% each: 20 or more misses would come once in a thousand.
        assert (bounds < mean).sum() < 20
        assert np.median(bounds) < mean + 0.1 * mean + 12 * most / 500
    assert mean_bound(np.zeros(1000), 1.0) < 0.005
    assert mean_bound(np.ones(10), 1.0) == 1.0
    with pytest.raises(UserError, match="between 0 and 1"):
        mean_bound(np.array([2.0]), 1.0)
