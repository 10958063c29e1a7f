"""A limit on the mean cost of the worst episodes."""

from dataclasses import dataclass
from typing import Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from qcrl.constraints.constraint import Constraint, Steering, Unit


@dataclass(frozen=True)
class CVaR(Constraint):
    """The worst share `level` of episodes may cost at most `limit` on average."""

    limit: float
    level: float
    cost: str = "cost"

    share_field, statistics = "level", ("cvar",)

    @classmethod
    def from_outage(cls, outage: Constraint) -> Self:
        return cls(outage.limit, outage.share, outage.cost)  # type: ignore[arg-type]

    def steer(self, statistic: str, costs: Float[Array, " n"], valid: Bool[Array, " n"], unit: Unit) -> Steering:
        worst_first = -jnp.sort(jnp.where(valid, -costs, jnp.inf))
        # An episode on the edge of the worst share counts in part.
        counted = jnp.clip(self.level * jnp.sum(valid) - jnp.arange(costs.size), 0, 1)
        mean = jnp.sum(worst_first * counted, where=counted > 0) / jnp.sum(counted)
        return Steering(mean / unit, self.limit / unit)

    def measure(self, costs: Float[np.ndarray, " n"]) -> float:
        from qcrl import stats  # not above: training need not wait for scipy

        return stats.cvar(costs, self.level)

    @property
    def words(self) -> str:
        return f"the worst {self.level:g} of episodes cost at most {self.limit:g}{self.of_cost} on average"
