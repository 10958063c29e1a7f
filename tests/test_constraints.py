"""Constraints know themselves: their statistics against closed forms, their judgement, their words, and JSON."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qcrl import CVaR, Mean, Outage, UserError, stats
from qcrl.constraints import Bounds, Constraint, Steering, exceeds, from_dict, known
from qcrl.evaluation.summary import Results, summarise
from qcrl.evaluation.together import judge
from qcrl.runs.lane import Lane

COSTS = jnp.array([1.0, 4.0, 9.0, 16.0, 25.0, 99.0])
VALID = jnp.array([True] * 5 + [False])


@pytest.mark.parametrize(
    ("constraint", "statistic", "value", "target"),
    [
        (Outage(10, 0.25), "outage", 2 / 5, 0.25),
        (Outage(10, 0.25), "outage ratio", 1.6, 1.0),
        (Outage(10, 0.2), "quantile", 25 / 2, 5.0),
        (Mean(10), "mean", 11 / 2, 5.0),
        # The two worst of five; and these and a half of the third.
        (CVaR(10, 0.4), "cvar", (25 + 16) / 2 / 2, 5.0),
        (CVaR(10, 0.5), "cvar", (25 + 16 + 9 / 2) / 2.5 / 2, 5.0),
    ],
)
def test_what_training_is_steered_by(constraint, statistic, value, target):
    assert statistic in constraint.statistics
    steering = constraint.steer(statistic, COSTS, VALID, 2.0)
    assert float(steering.statistic) == pytest.approx(value)
    assert float(steering.target) == pytest.approx(target)


@pytest.mark.parametrize("constraint", [Outage(10, 0.25), Mean(10), CVaR(10, 0.3)])
def test_what_is_tracked_in_training_is_what_is_measured_afterwards(constraint):
    assert float(constraint.track(COSTS, VALID)) == pytest.approx(constraint.measure(np.asarray(COSTS)[:5]))


def test_intervals_are_those_of_the_statistic():
    costs = np.array([0.0] * 90 + [20.0] * 10)
    assert Outage(15, 0.1).interval(costs) == stats.outage_interval(10, 100)
    assert Mean(2).interval(costs) == pytest.approx((2 - 1.96 * 0.6, 2 + 1.96 * 0.6))
    assert CVaR(2, 0.1).interval(costs) is None


def test_whoever_spends_just_the_limit_is_over_it_nowhere():
    """Three costs of .1 are .30000001 in single precision and .30000000000000004 in double."""
    sums = np.cumsum(np.full(3, 0.1, np.float32))[-1:], np.cumsum(np.full(3, 0.1))[-1:]
    for costs in sums:
        assert not exceeds(costs, 0.3)
        assert Outage(0.3, 0.1).measure(costs) == 0.0
        summary = summarise([Lane(0, (Outage(0.3, 0.1),), 0.1)], [Results(costs, costs)])
        assert (summary.outages, summary.mean_cost_over) == (0, None)
    assert exceeds(np.float32([0.30001]), 0.3)


def test_kinds_are_found_in_their_files():
    assert known().items() >= {"CVaR": CVaR, "Mean": Mean, "Outage": Outage}.items()
    assert "Constraint" not in known()


def test_how_costs_are_judged():
    costs = np.array([0.0] * 90 + [20.0] * 10)
    assert Outage(15, 0.5).judge(costs) == "kept"
    assert Outage(15, 0.01).judge(costs) == "broken"
    assert "cannot" not in Outage(15, 0.1).judge(costs)
    assert Outage(15, 0.1).judge(costs).startswith("neither kept nor broken")
    assert (Outage(15, 0.1).measure(costs), Outage(15, 0.1).bound) == (0.1, 0.1)
    assert (Mean(2).measure(costs), Mean(2).judge(costs), Mean(1.9).judge(costs)) == (2.0, "kept", "broken")
    assert CVaR(15, 0.2).measure(costs) == pytest.approx(10.0)
    assert (CVaR(10, 0.2).judge(costs), CVaR(9, 0.2).judge(costs)) == ("kept", "broken")


@pytest.mark.parametrize("constraint", [Outage(15, 0.1), Outage(2.5, 0.2, "hazards"), CVaR(3, 0.5), Mean(0, cost="x")])
def test_json_gives_it_back(constraint):
    assert from_dict(constraint.as_dict()) == constraint
    assert constraint.words.count(f"{constraint.limit:g}")


def test_its_numbers_are_leaves_and_its_cost_is_not():
    stacked = jax.tree.map(lambda *x: jnp.array(x), Outage(1, 0.1, "a"), Outage(2, 0.2, "a"))
    assert stacked.cost == "a"
    doubled = jax.vmap(lambda constraint: constraint.limit * constraint.probability)(stacked)
    np.testing.assert_allclose(doubled, [0.1, 0.4], rtol=1e-6)
    assert jax.tree.structure(Outage(1, 0.1, "a")) != jax.tree.structure(Outage(1, 0.1, "b"))


@pytest.mark.parametrize(
    "make", [lambda: Outage(-1, 0.1), lambda: Outage(15, 1.5), lambda: CVaR(1, 0), lambda: Mean("x")]
)
def test_what_cannot_work_is_refused(make):
    with pytest.raises(UserError, match="must"):
        make()


@dataclass(frozen=True)
class AtMostOnce(Constraint):
    """A kind of one's own: no more than one episode may be over the limit."""

    limit: float
    cost: str = "cost"
    statistics = ("count",)

    def steer(self, statistic, costs, valid, unit):
        return Steering(jnp.sum(costs > self.limit, where=valid), 1.0)

    def measure(self, costs):
        return float(np.sum(costs > self.limit))

    @property
    def bound(self):
        return 1.0

    @property
    def words(self):
        return f"one episode may cost more than {self.limit:g}"


class Never(AtMostOnce):
    """A kind of one's own that can be certified: no episode may be over the limit."""

    def exact_bounds(self, costs, largest, lower_error, upper_error):
        return Bounds(0.0, float(np.sum(costs > self.limit)), {}, "looked at each")


def test_a_kind_of_ones_own_is_certified_with_others_by_its_bounds():
    every = {"cost": np.arange(10.0)}
    verdict, rows = judge((Outage(10, 0.5), Never(9), AtMostOnce(9)), [0.5], every, {}, 0.05)
    assert verdict == "certified"
    assert [row["verdict"] for row in rows] == ["certified", "certified", "not certifiable"]
    assert rows[1]["words"].startswith("One episode may cost more than 9: certified, looked at each, bounds 0 to 0")
    assert judge((Outage(10, 0.5), Never(6)), [0.5], every, {}, 0.05)[0] == "undecided"


def test_a_kind_of_ones_own():
    own = AtMostOnce(10)
    assert float(own.steer("count", COSTS, VALID, 1.0).statistic) == 2
    assert own.judge(np.array([1.0, 20.0])) == "kept"
    assert own.as_dict()["kind"] == "test_constraints:AtMostOnce"
    assert from_dict(own.as_dict()) == own
