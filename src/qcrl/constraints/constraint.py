"""What a constraint is: it owns the statistics of episode costs that can steer training, what they are steered to, how
costs are judged, and its words. A new kind is a subclass with `statistics`, `steer`, `measure` and `words`.

`a & b` are constraints that hold together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from qcrl.errors import UserError
from qcrl.kinds import Json, Number
from qcrl.named import path_of

REPORTED_PROBABILITY = 0.1
"""Where a constraint names no probability, outages are reported for this one."""

Unit = Float[Array, ""] | float
"""What costs are counted in."""


class Steering(NamedTuple):
    """A statistic of episode costs and the value it is steered to; the multiplier is driven by their difference."""

    statistic: Float[Array, ""]
    target: Float[Array, ""] | float


class Bounds(NamedTuple):
    """Exact one-sided bounds of what a constraint measures, and what they follow from."""

    lower: float
    upper: float
    found: Json
    words: str


def _fields(constraint: Any) -> tuple[Any, ...]:
    return fields(constraint)


def _flatten(constraint: Any) -> tuple[list[tuple[Any, Any]], tuple[tuple[str, str], ...]]:
    names = [field.name for field in _fields(constraint)]
    texts = tuple((name, getattr(constraint, name)) for name in names if isinstance(getattr(constraint, name), str))
    numbers = [name for name in names if name not in dict(texts)]
    return [(jax.tree_util.GetAttrKey(name), getattr(constraint, name)) for name in numbers], texts


def rebuild(kind: type, texts: tuple[tuple[str, str], ...], values: Any) -> Any:
    """Without a check: the values may be arrays, or stand for some."""
    constraint: Any = object.__new__(kind)
    numbers = [field.name for field in _fields(kind) if field.name not in dict(texts)]
    for name, value in (*texts, *zip(numbers, values)):
        object.__setattr__(constraint, name, value)
    return constraint


class Constraint:
    """A bound on what episodes cost. Its numbers may be arrays, so that lanes with other ones are one program."""

    limit: float
    """The allowed episode cost."""
    cost: str
    """Which of the environment's costs."""
    share_field: ClassVar[str | None] = None
    """The field that says which share of episodes the constraint speaks of."""
    statistics: ClassVar[tuple[str, ...]]
    """Statistics of recent episode costs that training can be steered by; the first is the usual one."""
    tracked: ClassVar[str] = ""
    """The one of them that is `measure`, for metrics; the first unless given."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        jax.tree_util.register_pytree_with_keys(cls, _flatten, lambda names, values: rebuild(cls, names, values))

    def __post_init__(self) -> None:
        if not _holds(self.limit, lambda limit: 0 <= limit < 1e38):  # more is infinite in single precision
            raise UserError(
                f"limit is {self.limit!r}, but must be a finite number of at least 0: give the allowed episode cost"
            )
        if self.share_field is not None and not _holds(self.share, lambda share: 0 < share < 1):
            raise UserError(
                f"{self.share_field} is {self.share!r}, but must lie strictly between 0 and 1: give a share such as 0.1"
            )

    def __and__(self, other: "Constraint | Together") -> "Together":
        return Together((self,)) & other

    @property
    def share(self) -> float | None:
        """The share of episodes that the constraint speaks of; None where it speaks of all."""
        return None if self.share_field is None else getattr(self, self.share_field)

    @property
    def key(self) -> str:
        """Short name for columns and files."""
        return f"{type(self).__name__.lower()}_{self.cost}"

    @property
    def ranged(self) -> bool:
        """Whether its numbers are drawn anew for every episode."""
        return False

    @property
    def middle(self) -> Self:
        """The constraint itself, or where numbers are drawn, with those in the middle."""
        return self

    def ask(self, position: Number) -> Self:
        """With the numbers at these positions in its ranges."""
        return self

    def locate(self, limit: float | None = None, probability: float | None = None) -> tuple[float, float]:
        """Where in its ranges these numbers lie."""
        raise NotImplementedError

    @property
    def measured(self) -> str:
        """What `measure` is called."""
        return self.tracked or self.statistics[0]

    def track(self, costs: Float[Array, " n"], valid: Bool[Array, " n"]) -> Float[Array, ""]:
        """`measure`, of the costs that are valid, while training."""
        return self.steer(self.measured, costs, valid, 1.0).statistic

    @classmethod
    def from_outage(cls, outage: "Constraint") -> Self:
        """What takes the place of an outage constraint for an algorithm that trains under this kind."""
        raise NotImplementedError

    def steer(self, statistic: str, costs: Float[Array, " n"], valid: Bool[Array, " n"], unit: Unit) -> Steering:
        """One of the `statistics` over the costs that are valid, and its target; costs are counted in `unit`."""
        raise NotImplementedError

    def measure(self, costs: Float[np.ndarray, " n"]) -> float:
        """The value that the constraint bounds, over these episodes."""
        raise NotImplementedError

    def suspect(self, costs: Float[np.ndarray, " n"]) -> float:
        """`measure`, or more, where these episodes may be so few that they look better by luck."""
        return self.measure(costs)

    def interval(self, costs: Float[np.ndarray, " n"]) -> tuple[float, float] | None:
        """Where the true value of `measure` lies, with a confidence of 95%; None where that is not known."""
        return None

    def exact_bounds(
        self, costs: Float[np.ndarray, " n"], largest: float | None, lower_error: float, upper_error: float
    ) -> Bounds | str:
        """Of `measure`, for certificates; or why there are none. No episode costs more than the largest, if known."""
        return "it is no outage and no mean"

    @property
    def bound(self) -> float:
        """What `measure` may be at most."""
        return self.limit

    def judge(self, costs: Float[np.ndarray, " n"]) -> str:
        """kept, broken, or why that cannot be told."""
        return "kept" if self.measure(costs) <= self.bound else "broken"

    @property
    def words(self) -> str:
        """What is asked for."""
        raise NotImplementedError

    @property
    def of_cost(self) -> str:
        """For its words: which cost, where that is not the only one."""
        return "" if self.cost == "cost" else f" of {self.cost}"

    def as_dict(self) -> Json:
        """As JSON gives it back: its kind and its fields."""
        kind = type(self).__name__ if type(self).__module__.startswith(f"{__package__}.") else path_of(type(self))
        values = {field.name: getattr(self, field.name) for field in _fields(self)}
        # JSON has no numbers of NumPy.
        return {
            "kind": kind,
            **{name: value.item() if hasattr(value, "item") else value for name, value in values.items()},
        }


@dataclass(frozen=True)
class Together:
    """Constraints that hold together."""

    constraints: tuple[Constraint, ...]

    def __post_init__(self) -> None:
        for number, constraint in enumerate(self.constraints):
            if not isinstance(constraint, Constraint):
                raise UserError(
                    f"{constraint!r} is no constraint; join constraints, as in qcrl.Outage(...) & qcrl.Mean(...)"
                )
            if constraint in self.constraints[:number]:
                raise UserError(f"the same constraint stands twice, that {constraint.words}; give it once")
            if constraint.ranged and len(self.constraints) > 1:
                raise UserError("a constraint whose limit or probability is a range must stand alone; give numbers")

    def __and__(self, other: "Constraint | Together") -> "Together":
        return Together((*self.constraints, *together(other)))

    @property
    def words(self) -> str:
        return ", and ".join(constraint.words for constraint in self.constraints)


def together(asked: Constraint | Together) -> tuple[Constraint, ...]:
    """The constraints that hold together in what a user gave."""
    return asked.constraints if isinstance(asked, Together) else (asked,)


def keys(constraints: Sequence[Constraint]) -> tuple[str, ...]:
    """Names for columns, one for each: kind and cost, with a number where that would be the same."""
    names = [constraint.key for constraint in constraints]
    return tuple(
        name if names[:place].count(name) == 0 else f"{name}_{1 + names[:place].count(name)}"
        for place, name in enumerate(names)
    )


def _holds(value: Any, condition: Callable[[Any], bool]) -> bool:
    """Whether the value is a number that fits; of an array of JAX that may not be known."""
    if isinstance(value, jax.Array):
        return True
    return not isinstance(value, bool) and hasattr(value, "__float__") and condition(value)
