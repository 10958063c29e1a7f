"""A limit on how many episodes may cost more than so much. Both may be ranges, of which every episode draws its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from qcrl import ranges
from qcrl.constraints.constraint import Bounds, Constraint, Steering, Unit, rebuild
from qcrl.kinds import Number
from qcrl.quantiles import empirical_quantile

Costs = TypeVar("Costs", Float[Array, " n"], Float[np.ndarray, " n"])


def exceeds(costs: Costs, limit: Number) -> Costs:
    """Which costs are over a limit, in single precision: training has no other, and sums are off by their rounding."""
    single = costs.astype(np.float32)
    return single > (np.float32(limit) if isinstance(costs, np.ndarray) else limit)  # type: ignore


@dataclass(frozen=True)
class Outage(Constraint):
    """At most a share `probability` of episodes may cost more than `limit`: Pr(cost > limit) <= probability.

    Either may be a range, (lowest, highest): it is then drawn for every episode, and one policy learns to keep all.
    """

    limit: float
    probability: float
    cost: str = "cost"

    share_field, statistics, tracked = "probability", ("quantile", "outage", "outage ratio"), "outage"

    def __post_init__(self) -> None:
        for name in ("limit", "probability"):
            if isinstance(ends := getattr(self, name), list | tuple):
                object.__setattr__(self, name, ranges.check(name, ends))
        if not self.ranged:
            return super().__post_init__()
        for end in (0, 1):
            Outage(ranges.end(self.limit, end), ranges.end(self.probability, end))

    @property
    def ranged(self) -> bool:
        return ranges.is_range(self.limit) or ranges.is_range(self.probability)

    @property
    def middle(self) -> "Outage":
        return self.ask((0.5, 0.5)) if self.ranged else self

    def at(self, limit: Unit) -> "Outage":
        """With another limit."""
        return rebuild(Outage, (("cost", self.cost),), (limit, self.probability))

    def ask(self, position: Number) -> "Outage":
        """With the numbers at these positions in the ranges; probabilities are spread by their logarithm."""
        numbers = ranges.at(self.limit, position[0]), ranges.at(self.probability, position[1], logarithmic=True)
        return rebuild(Outage, (("cost", self.cost),), numbers)

    def locate(self, limit: float | None = None, probability: float | None = None) -> tuple[float, float]:
        """The positions in the ranges of the numbers that a user asks for."""
        return (
            ranges.locate("limit", limit, self.limit),
            ranges.locate("probability", probability, self.probability, logarithmic=True),
        )

    @classmethod
    def from_outage(cls, outage: Constraint) -> "Outage":
        assert isinstance(outage, Outage)
        return outage

    def steer(self, statistic: str, costs: Float[Array, " n"], valid: Bool[Array, " n"], unit: Unit) -> Steering:
        outage = jnp.mean(exceeds(costs, self.limit), where=valid)
        if statistic == "outage":
            return Steering(outage, jnp.asarray(self.probability))
        if statistic == "outage ratio":  # the same gains serve every probability
            return Steering(outage / self.probability, 1.0)
        # The paper's. Unbounded, it can wind the multiplier far up.
        return Steering(empirical_quantile(costs, valid, 1 - jnp.asarray(self.probability)) / unit, self.limit / unit)

    def measure(self, costs: Float[np.ndarray, " n"]) -> float:
        return float(np.mean(exceeds(costs, self.limit)))

    def suspect(self, costs: Float[np.ndarray, " n"]) -> float:
        """With as many more outages as luck may have hidden: the root of those that were seen, and one at least."""
        outages = float(np.sum(exceeds(costs, self.limit)))
        return (outages + max(1.0, outages**0.5)) / (len(costs) + 1)

    @property
    def bound(self) -> float:
        return self.probability

    def interval(self, costs: Float[np.ndarray, " n"]) -> tuple[float, float]:
        """Exact."""
        from qcrl import stats  # not above: training need not wait for scipy

        return stats.outage_interval(int(np.sum(exceeds(costs, self.limit))), len(costs))

    def exact_bounds(
        self, costs: Float[np.ndarray, " n"], largest: float | None, lower_error: float, upper_error: float
    ) -> Bounds:
        from qcrl import stats  # not above: training need not wait for scipy

        outages, episodes = int(np.sum(exceeds(costs, self.limit))), len(costs)
        lower = stats.outage_lower_bound(outages, episodes, 1 - lower_error)
        upper = stats.outage_bound(outages, episodes, 1 - upper_error)
        return Bounds(lower, upper, {"outages": outages}, f"{outages:,} outages")

    def judge(self, costs: Float[np.ndarray, " n"]) -> str:
        low, high = self.interval(costs)
        if high <= self.probability:
            return "kept"
        if low > self.probability:
            return "broken"
        return f"neither kept nor broken as far as {len(costs):,} episodes can tell"

    @property
    def words(self) -> str:
        share, limit = ranges.text(self.probability), ranges.text(self.limit)
        drawn = ", drawn for each" if self.ranged else ""
        return f"at most {share} of episodes cost more than {limit}{self.of_cost}{drawn}"


def outages(constraints: Sequence[Constraint]) -> list[Outage]:
    """Those of them that are about outages."""
    return [each for each in constraints if isinstance(each, Outage)]


def promising(constraints: Sequence[Constraint], probabilities: Sequence[float]) -> list[Constraint]:
    """The constraints, those about outages with these probabilities."""
    left = list(probabilities)
    return [replace(each, probability=left.pop(0)) if isinstance(each, Outage) else each for each in constraints]


def any_over(constraints: Sequence[Constraint], costs: Mapping[str, Costs]) -> Costs | None:
    """Which episodes are over the limit of one of several outage constraints; None where there is one at most."""
    over = [exceeds(costs[each.cost], each.limit) for each in outages(constraints)]
    return reduce(or_, over) if len(over) > 1 else None
