"""What a policy may cost: constraints on the cost of a whole episode. Every file here with a kind of them is found."""

import pkgutil
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from importlib import import_module

from qcrl.constraints.constraint import (
    REPORTED_PROBABILITY,
    Bounds,
    Constraint,
    Steering,
    Together,
    Unit,
    keys,
    together,
)
from qcrl.constraints.cvar import CVaR
from qcrl.constraints.mean import Mean
from qcrl.constraints.outage import Outage, any_over, exceeds, outages, promising
from qcrl.errors import UserError
from qcrl.named import load, require_trust

__all__ = [
    "REPORTED_PROBABILITY",
    "Bounds",
    "CVaR",
    "Constraint",
    "Mean",
    "Outage",
    "Steering",
    "Together",
    "Unit",
    "any_over",
    "exceeds",
    "from_dict",
    "keys",
    "known",
    "outages",
    "promising",
    "together",
]


@cache
def known() -> dict[str, type[Constraint]]:
    """The kinds of constraint that come with qcrl, by name."""
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {
        kind.__name__: kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Constraint) and kind.__module__ == module.__name__
        if kind is not Constraint
    }


def from_dict(description: Mapping[str, object]) -> Constraint:
    """The constraint that `as_dict` described, or a user's table."""
    values = dict(description)
    name = str(values.pop("kind", ""))
    require_trust(name, "constraint")
    written = {each.lower(): kind for each, kind in known().items()} | known()
    kind = load(name, "constraint") if ":" in name else written.get(name)
    if not (isinstance(kind, type) and issubclass(kind, Constraint)):
        raise UserError(f"there is no constraint {name!r}; the known ones are {', '.join(known())}")
    own = fields(kind)  # type: ignore[arg-type]
    missing = [field.name for field in own if field.default is MISSING and field.name not in values]
    if missing or not set(values) <= {field.name for field in own}:
        given, needed = ", ".join(values) or "nothing", ", ".join(missing or [field.name for field in own])
        raise UserError(f"{kind.__name__} is given {given}, but needs {needed}; see the docs")
    return kind(**values)
