"""Plans of certificates: exact errors, bounds and lengths, against scipy and simulation."""

import numpy as np
import pytest
from scipy import stats

from qcrl import UserError
from qcrl.evaluation import plan as plans
from qcrl.stats import episodes_needed, outage_bound, outage_lower_bound

GRID = [(0.2, 0.1, 0.8), (0.1, 0.05, 0.8), (0.1, 0.08, 0.98), (0.01, 0.005, 0.98), (0.001, 0.0005, 0.8)]


def simulate(plan, outage, runs, rng):
    """The look and the outages at which each of so many runs ends, and its verdict."""
    steps = np.diff([0, *plan.looks])
    counts = np.cumsum(rng.binomial(steps, outage, (runs, len(steps))), axis=1)
    low, high = counts <= np.array(plan.certify_at), counts >= np.array(plan.violate_at)
    ends = low | high
    ends[:, -1] = True
    look = ends.argmax(axis=1)
    at = np.arange(runs), look
    return look, counts[at], np.where(low[at], "certified", np.where(high[at], "violated", "undecided"))


@pytest.mark.parametrize(("promise", "expected", "power"), GRID)
def test_a_sequential_plan_keeps_its_error_its_power_and_its_length(promise, expected, power):
    plan = plans.planned(promise, 0.05, expected, power, in_looks=True)
    fixed = episodes_needed(promise, expected=expected, power=power)
    assert len(plan.looks) > 1
    assert plan.power(promise) <= 0.05
    assert plan.power(expected) >= power
    assert plan.episodes <= 1.25 * fixed
    look, _, verdicts = simulate(plan, expected, 20_000, np.random.default_rng(0))
    assert np.median(np.array(plan.looks)[look]) <= 0.7 * fixed
    # Five standard errors.
    assert np.mean(verdicts == "certified") == pytest.approx(plan.power(expected), abs=5 * (0.2 * 0.8 / 20_000) ** 0.5)
    at_promise = simulate(plan, promise, 20_000, np.random.default_rng(1))[2]
    for verdict in ("certified", "violated"):
        assert 0 < np.sum(at_promise == verdict) <= stats.binom.isf(1e-6, 20_000, 0.05)


def test_sequential_bounds_cover_and_agree_with_the_verdict():
    """At every outage each bound fails in at most .05 of 4,000 runs, up to chance of one in a million."""
    plan = plans.sequential(0.1, 0.05, 300)
    alarm = stats.binom.isf(1e-6, 4000, 0.05)
    known = {}
    for outage in (0.03, 0.1, 0.17):
        look, counts, verdicts = simulate(plan, outage, 4000, np.random.default_rng(2))
        for end in set(zip(look.tolist(), counts.tolist(), verdicts.tolist())) - set(known):
            known[end] = plan.bounds(*end[:2])
        found = np.array([known[end] for end in zip(look.tolist(), counts.tolist(), verdicts.tolist())])
        assert np.sum(found[:, 0] > outage) <= alarm
        assert np.sum(found[:, 1] < outage) <= alarm
    for (_, _, verdict), (low, high) in known.items():
        assert low < high
        assert (verdict == "certified") == (high <= 0.1)
        assert (verdict == "violated") == (low >= 0.1)


def test_one_look_is_clopper_pearson_and_the_same_as_many_that_never_end():
    """Looks that cannot end anything change no bound: the general formula has the closed form as its special case."""
    fixed = plans.fixed(0.1, 0.05, 300)
    blind = plans.Plan(0.1, 0.05, (100, 300), (-1, fixed.certify_at[0]), (101, fixed.violate_at[0]))
    for outages in (0, 5, 21, 22, 39, 40, 80):
        assert fixed.bounds(0, outages) == (outage_lower_bound(outages, 300), outage_bound(outages, 300))
        assert blind.bounds(1, outages) == pytest.approx(fixed.bounds(0, outages), abs=1e-6)
    assert fixed.power(0.08) == pytest.approx(stats.binom.cdf(fixed.certify_at[0], 300, 0.08), abs=1e-9)


@pytest.mark.parametrize("outages", [19, 64, 65, 99, 100])
def test_what_ends_at_the_first_look_has_the_bounds_of_that_look_alone(outages):
    """Also with more outages than end the last look, which are 64 here."""
    plan = plans.sequential(0.1, 0.05, 500, looks=5)
    assert (plan.looks[0], plan.violate_at[0], plan.violate_at[-1]) == (100, 19, 64)
    alone = outage_lower_bound(outages, 100), outage_bound(outages, 100)
    assert plan.bounds(0, outages) == pytest.approx(alone, abs=1e-9)


@pytest.mark.parametrize("episodes", [29, 100, 1000, 5000])
def test_the_planned_outage_is_the_one_that_so_many_episodes_certify(episodes):
    outage = plans.planned_outage(0.1, 0.05, episodes, 0.98)
    assert plans.fixed(0.1, 0.05, episodes).power(outage) == pytest.approx(0.98, abs=1e-6)


def test_too_few_episodes_certify_nothing():
    with pytest.raises(UserError, match="28 episodes are too few"):
        plans.planned_outage(0.1, 0.05, 28, 0.98)
