"""A limit on the mean cost of an episode."""

from dataclasses import dataclass
from typing import Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from qcrl.constraints.constraint import Bounds, Constraint, Steering, Unit


@dataclass(frozen=True)
class Mean(Constraint):
    """An episode may cost at most `limit` on average."""

    limit: float
    cost: str = "cost"

    statistics = ("mean",)

    @classmethod
    def from_outage(cls, outage: Constraint) -> Self:
        return cls(outage.limit, outage.cost)

    def steer(self, statistic: str, costs: Float[Array, " n"], valid: Bool[Array, " n"], unit: Unit) -> Steering:
        return Steering(jnp.mean(costs, where=valid) / unit, self.limit / unit)

    def measure(self, costs: Float[np.ndarray, " n"]) -> float:
        return float(np.mean(costs))

    def interval(self, costs: Float[np.ndarray, " n"]) -> tuple[float, float]:
        """By the normal distribution."""
        mean, reach = float(np.mean(costs)), 1.96 * float(np.std(costs)) / len(costs) ** 0.5
        return mean - reach, mean + reach

    def exact_bounds(
        self, costs: Float[np.ndarray, " n"], largest: float | None, lower_error: float, upper_error: float
    ) -> Bounds | str:
        """By betting."""
        from qcrl import stats  # not above: training need not wait for scipy

        if largest is None:
            return "the largest possible cost is not known"
        lower = largest - stats.mean_bound(largest - costs, largest, 1 - lower_error)
        upper = stats.mean_bound(costs, largest, 1 - upper_error)
        mean = float(costs.mean())
        return Bounds(lower, upper, {"mean": mean}, f"{mean:.4g} on average")

    @property
    def words(self) -> str:
        return f"episodes cost at most {self.limit:g}{self.of_cost} on average"
