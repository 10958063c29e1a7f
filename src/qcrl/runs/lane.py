"""A lane: one of the trainings that a run does side by side, and how it is named, described and written into tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qcrl import constraints as kinds
from qcrl.constraints import REPORTED_PROBABILITY, Constraint
from qcrl.errors import UserError
from qcrl.kinds import Json

Column = int | float


@dataclass(frozen=True)
class Lane:
    """A seed, the constraints that hold together, and what else differs between lanes."""

    seed: int
    constraints: tuple[Constraint, ...]
    probability: float
    """The share of episodes at which outages and quantiles are reported: the constraint's, where it has one."""
    learning_rate: float | None = None
    """Only where lanes of a run differ in it."""

    @property
    def constraint(self) -> Constraint:
        """The first, which tables and names are about."""
        return self.constraints[0]

    @property
    def limit(self) -> float:
        return float(self.constraint.limit)

    @property
    def columns(self) -> dict[str, Column]:
        """What tells its rows from those of other lanes, by the names of the columns."""
        return {"seed": self.seed, **self.setting}

    @property
    def setting(self) -> dict[str, Column]:
        """All but the seed."""
        rate: dict[str, Column] = {} if self.learning_rate is None else {"learning_rate": self.learning_rate}
        return {"probability": float(self.probability), "limit": self.limit, **rate}

    def __str__(self) -> str:
        """Unique among lanes, and the name of its files."""
        rate = "" if self.learning_rate is None else f"-lr{shortest(self.learning_rate)}"
        return f"seed{self.seed}-p{shortest(self.probability)}-d{shortest(self.limit)}{rate}"

    def as_dict(self) -> Json:
        """As JSON gives it back."""
        return self.columns | {"constraints": [constraint.as_dict() for constraint in self.constraints]}


def from_dict(description: Json) -> Lane:
    """The lane that `as_dict` described."""
    constraints = tuple(kinds.from_dict(each) for each in description["constraints"])
    return Lane(description["seed"], constraints, description["probability"], description.get("learning_rate"))


def make_lane(seed: int, constraint: Constraint, asked: Constraint, learning_rate: float | None = None) -> Lane:
    """A lane trained under one constraint, and reported at the share of episodes that was asked for."""
    share = asked.share
    probability = REPORTED_PROBABILITY if share is None else float(share)
    return Lane(seed, (constraint,), probability, learning_rate)


def by_setting(lanes: Sequence[Lane]) -> list[list[Lane]]:
    """The lanes that differ in their seed alone, together."""
    groups: dict[tuple[Column, ...], list[Lane]] = {}
    for lane in lanes:
        groups.setdefault(tuple(lane.setting.values()), []).append(lane)
    return list(groups.values())


def from_earlier_version(values: Sequence[Any], kind: str) -> Lane:
    """A lane as configs of before had it: seed, probability, limit, perhaps a learning rate; and one kind for all."""
    seed, probability, limit, *rate = values
    outage = kinds.Outage(limit, probability)
    found: dict[str, type[Constraint]] = {"Outage": kinds.Outage, "CVaR": kinds.CVaR, "Mean": kinds.Mean}
    if kind not in found:
        raise UserError(f"there is no constraint {kind!r}; the known ones are {', '.join(found)}")
    return make_lane(int(seed), found[kind].from_outage(outage), outage, *rate)


def shortest(number: float) -> str:
    """The shortest text that gives the number back; whole numbers without a point."""
    return repr(float(number)).removesuffix(".0")
