"""What a policy may cost: the three kinds of constraint that the algorithms train under."""

import math
from dataclasses import dataclass

from qcrl.errors import UserError


@dataclass(frozen=True)
class Outage:
    """At most a share `probability` of episodes may cost more than `limit`: Pr(cost > limit) <= probability."""

    limit: float
    probability: float

    def __post_init__(self) -> None:
        _check_limit(self.limit)
        _check_share("probability", self.probability)


@dataclass(frozen=True)
class CVaR:
    """The worst share `level` of episodes may cost at most `limit` on average."""

    limit: float
    level: float

    def __post_init__(self) -> None:
        _check_limit(self.limit)
        _check_share("level", self.level)


@dataclass(frozen=True)
class Mean:
    """An episode may cost at most `limit` on average."""

    limit: float

    def __post_init__(self) -> None:
        _check_limit(self.limit)


Constraint = Outage | CVaR | Mean


def _check_limit(limit: float) -> None:
    if not (_is_number(limit) and math.isfinite(limit) and limit >= 0):
        raise UserError(f"limit is {limit!r}, but must be a finite number of at least 0: give the allowed episode cost")


def _check_share(name: str, share: float) -> None:
    if not (_is_number(share) and 0 < share < 1):
        raise UserError(f"{name} is {share!r}, but must lie strictly between 0 and 1: give a share such as 0.1")


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and hasattr(value, "__float__")
