"""Constraints and costs as they are typed."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_

from qcrl.constraints import Constraint, Together, from_dict
from qcrl.envs.host.costs import Costs
from qcrl.errors import UserError

EXAMPLE = "outage:cost=hazards,limit=15,probability=0.1"


def constraint(text: str) -> Constraint:
    """kind:field=value,field=value; a range is lowest..highest."""
    kind, _, rest = text.partition(":")
    description: dict[str, object] = {"kind": kind}
    for part in filter(None, rest.split(",")):
        name, found, value = part.partition("=")
        try:
            ends = [value] if name == "cost" else [float(end) for end in value.split("..")]
        except ValueError:
            ends = []
        if not found or not value or not ends:
            raise UserError(f"the constraint {text!r} cannot be read at {part!r}; give it like {EXAMPLE}")
        description[name] = ends[0] if len(ends) == 1 else ends
    return from_dict(description)


def together(texts: Sequence[str]) -> Constraint | Together:
    """Constraints that hold together."""
    return reduce(and_, map(constraint, texts))


def costs(words: Sequence[str] | Mapping[str, str] | str | None) -> Costs:
    """One place of a cost, several with names (name=place), or several keys of info, which are their names."""
    if words is None or isinstance(words, str | Mapping):
        return words
    named = dict(word.split("=", 1) for word in words if "=" in word)
    if named and len(named) < len(words):
        raise UserError(f"costs are {', '.join(words)}; give each of them a name, or none, and each name once")
    return named or (words[0] if len(words) == 1 else list(words))
