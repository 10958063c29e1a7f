"""A lane: one of the trainings that a run does side by side, and how it is named, described and written into tables."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qcrl import constraints as kinds
from qcrl.constraints import REPORTED_PROBABILITY, Constraint, Outage
from qcrl.errors import UserError, check_name
from qcrl.kinds import Json, Number

Column = int | float
Numbers = float | Sequence[float] | None
"""One number or several that are asked for; None for those there are."""


@dataclass(frozen=True)
class Lane:
    """A seed, the constraints that hold together, and what else differs between lanes."""

    seed: int
    constraints: tuple[Constraint, ...]
    probability: float
    """The share of episodes at which outages and quantiles are reported: the constraint's, where it has one."""
    learning_rate: float | None = None
    """Only where lanes of a run differ in it."""
    trained: "Lane | None" = None
    """The lane that was trained for ranges, where this is one limit and probability of them."""

    @property
    def constraint(self) -> Constraint:
        """The first, which tables and names are about."""
        return self.constraints[0]

    @property
    def limit(self) -> float:
        """Of the first; where it is drawn for every episode, the middle of its range."""
        return float(self.constraint.middle.limit)

    @property
    def keys(self) -> tuple[str, ...]:
        """Short names of the constraints."""
        return kinds.keys(self.constraints)

    @property
    def shares(self) -> list[float]:
        """The shares of episodes that its constraints speak of and that are reported; of a range the lowest."""
        own = [min(_ends(each.share)) for each in self.constraints if each.share is not None]
        return [float(share) for share in own or [self.probability]]

    @property
    def columns(self) -> dict[str, Column]:
        """What tells its rows from those of other lanes, by the names of the columns."""
        return {"seed": self.seed, **self.setting}

    @property
    def setting(self) -> dict[str, Column]:
        """All but the seed."""
        rate: dict[str, Column] = {} if self.learning_rate is None else {"learning_rate": self.learning_rate}
        return {"probability": float(self.probability), "limit": self.limit, **self._further, **rate}

    @property
    def _further(self) -> dict[str, Column]:
        """The numbers of all constraints but the first."""
        numbers = {}
        for key, constraint in zip(self.keys[1:], self.constraints[1:]):
            numbers[f"limit_{key}"] = float(constraint.limit)
            if constraint.share is not None:
                numbers[f"probability_{key}"] = float(constraint.share)
        return numbers

    def __str__(self) -> str:
        """Unique among lanes, and the name of its files."""
        rate = "" if self.learning_rate is None else f"-lr{shortest(self.learning_rate)}"
        share, limit = shortest(self.probability), shortest(self.limit)
        if self.constraint.ranged:
            share, limit = ("to".join(map(shortest, _ends(x))) for x in (self.constraint.share, self.constraint.limit))
        further = "".join(f"-{name}{shortest(value)}" for name, value in self._further.items())
        return f"seed{self.seed}-p{share}-d{limit}{further}{rate}"

    def judged(self, limits: Numbers = None, probabilities: Numbers = None) -> list["Lane"]:
        """The lane itself; of one that was trained for ranges, lanes for these numbers, or for ends and middle."""
        constraint = self.constraint
        if not isinstance(constraint, Outage) or not constraint.ranged:
            return [self]
        known = [constraint.ask((place, place)) for place in (0.0, 0.5, 1.0)]
        shares = listed(probabilities, [each.probability for each in known])
        asked = [(limit, share) for limit in listed(limits, [each.limit for each in known]) for share in shares]
        for limit, probability in asked:
            constraint.locate(limit, probability)
        return [
            Lane(self.seed, (Outage(limit, probability, constraint.cost),), probability, self.learning_rate, self)
            for limit, probability in asked
        ]

    def as_dict(self) -> Json:
        """As JSON gives it back."""
        return self.columns | {"constraints": [constraint.as_dict() for constraint in self.constraints]}


def from_dict(description: Json) -> Lane:
    """The lane that `as_dict` described."""
    constraints = tuple(kinds.from_dict(each) for each in description["constraints"])
    return Lane(description["seed"], constraints, description["probability"], description.get("learning_rate"))


def make_lane(
    seed: int, constraints: tuple[Constraint, ...], asked: Constraint, learning_rate: float | None = None
) -> Lane:
    """A lane trained under these constraints, and reported at the share of episodes that was asked for first."""
    share = asked.middle.share
    probability = REPORTED_PROBABILITY if share is None else float(share)
    return Lane(seed, constraints, probability, learning_rate)


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
    check_name("constraint", kind, kinds.known())
    return make_lane(int(seed), (kinds.known()[kind].from_outage(outage),), outage, *rate)


def require_home(policy: str, found: Json, asked: Json) -> None:
    """Raise where a policy file says other things of itself than the run that it lies in."""
    for name, value in asked.items():
        if found[name] != value:
            raise UserError(
                f"the policy file {policy} was copied in from elsewhere: its {name} is not that of this run; put back "
                "the run's own, or train it again"
            )


def listed(given: Numbers, otherwise: list[float]) -> list[float]:
    """What was asked for, each once."""
    numbers = otherwise if given is None else given if isinstance(given, Sequence) else [given]
    return list(dict.fromkeys(map(_as_float, numbers)))


def _as_float(number: float) -> float:
    """A whole number that is too large for a float is no lane's, and neither is what stands for it."""
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _ends(value: Number) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def shortest(number: float) -> str:
    """The shortest text that gives the number back; whole numbers without a point."""
    return repr(float(number)).removesuffix(".0")
