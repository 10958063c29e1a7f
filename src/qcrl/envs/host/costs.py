"""Where the cost of a host environment's step comes from. A missing cost is an error, never zero."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qcrl import named
from qcrl.envs.host.values import number
from qcrl.errors import UserError
from qcrl.kinds import Tree

Info = dict[str, Any]
"""What an environment reports with a step or a reset, by name."""
CostFunction = Callable[[Tree, Tree, Tree, Info], float]
"""cost_fn(obs, action, next_obs, info), with what the environment itself takes and gives."""
Costs = str | CostFunction | Mapping[str, str | CostFunction] | Sequence[str] | None
"""Where costs are: a key of info or a function; several of them by name; several keys of info; None: it is found."""
ONE_NAME = ("cost",)
"""What a single cost is called."""
NAME = re.compile(r"\w[\w.-]*")
SIX_TUPLE = "6-tuple"
QUOTED = r'info\["(.*?)"\](?:\["(.*)"\]|\[(\d+)\])?'
HOW_TO = (
    "give cost=KEY for info[KEY], or cost=cost_fn(obs, action, next_obs, info), or a dictionary of several by name; "
    "on the command line --cost KEY or module:function, or NAME=KEY for each"
)


@dataclass(frozen=True)
class CostSource:
    """The third value of a step of six, an entry of info or a part of one, a function; or several of these by name."""

    key: str | None = None
    function: CostFunction | None = None
    function_name: str = ""
    part: str | int | None = None
    """Which part of the entry, where it holds several costs."""
    several: tuple[tuple[str, "CostSource"], ...] = ()
    """Costs with names, each with its own source."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.several) or ONE_NAME

    @property
    def each(self) -> "tuple[CostSource, ...]":
        """The sources of single costs, in the order of the names."""
        return tuple(source for _, source in self.several) or (self,)

    @property
    def as_given(self) -> str | dict[str, str]:
        """As `parse` reads it, for a file."""
        return {name: str(source) for name, source in self.several} or str(self)

    def __str__(self) -> str:
        if self.several:
            return ", ".join(f"{name} = {source}" for name, source in self.several)
        if self.function is not None:
            return self.function_name
        part = "" if self.part is None else f"[{self.part}]" if isinstance(self.part, int) else f'["{self.part}"]'
        return SIX_TUPLE if self.key is None else f'info["{self.key}"]{part}'

    def raw(self, obs: Tree, action: Tree, next_obs: Tree, info: Info, third: object) -> object:
        """What the environment says; None where it says nothing. `third` is the third value of a step that has six."""
        if self.function is not None:
            return self.function(obs, action, next_obs, info)
        value = third if self.key is None else info.get(self.key)
        if self.part is None or value is None:
            return value
        try:
            return value[self.part]  # type: ignore[index]
        except (LookupError, TypeError):
            return None

    def read(self, obs: Tree, action: Tree, next_obs: Tree, info: Info, third: object) -> list[float]:
        """The costs of one step, checked."""
        found = []
        for source in self.each:
            cost = source.raw(obs, action, next_obs, info, third)
            if cost is None:
                raise UserError(f"the step has no cost ({source} is missing); report it at every step, or {HOW_TO}")
            found.append(check(cost))
        return found


def check(cost: object) -> float:
    """The cost as a number, finite and not negative."""
    value = number(cost, "cost")
    if value < 0:
        raise UserError(f"the cost is {value}, but must not be negative; mend its cost")
    return value


def parse(cost: "Costs | CostSource") -> CostSource | None:
    """What the user gave: nothing, a key of info, module:function, a function; or several, by name or as keys."""
    if cost is None or isinstance(cost, CostSource):
        return cost
    if callable(cost):
        name = getattr(cost, "__qualname__", type(cost).__qualname__)
        named.trust(getattr(cost, "__module__", ""))
        return CostSource(function=cost, function_name=f"{getattr(cost, '__module__', '')}:{name}")
    if isinstance(cost, Mapping | list | tuple):
        return _several(cost if isinstance(cost, Mapping) else {key: key for key in cost})
    if not isinstance(cost, str) or not cost:
        raise UserError(f"cost is {cost!r}, but must name where the cost is; {HOW_TO}")
    if cost == SIX_TUPLE:
        return CostSource()
    if quoted := re.fullmatch(QUOTED, cost):
        return CostSource(quoted[1], part=quoted[2] if quoted[3] is None else int(quoted[3]))
    return CostSource(function=named.load(cost, "cost"), function_name=cost) if ":" in cost else CostSource(cost)


def require_trust(cost: str | Mapping[str, str] | None) -> None:
    """Raise where a file names a function that the caller has not."""
    for each in places(cost):
        if not re.fullmatch(QUOTED, each):
            named.require_trust(each, "cost", calls=True)


def places(cost: str | Mapping[str, str] | None) -> list[str]:
    """Where the costs are that a file describes."""
    return list(cost.values()) if isinstance(cost, Mapping) else [] if cost is None else [cost]


def _several(costs: Mapping[str, Tree]) -> CostSource:
    if not costs or not all(isinstance(name, str) and NAME.fullmatch(name) for name in costs):
        raise UserError(
            f"costs are named {', '.join(map(repr, costs)) or 'nothing'}; give words of letters, digits and _"
        )
    found = {name: parse(each) for name, each in costs.items()}
    for name, source in found.items():
        if source is None or source.several:
            raise UserError(f"the cost {name!r} is {costs[name]!r}, but must say where one cost is; {HOW_TO}")
    return CostSource(several=tuple(found.items()))  # type: ignore[arg-type]


def find(info: Info, values: int, env_id: str) -> CostSource:
    """The cost of an environment whose step returned so many values and this info; several where that holds several."""
    if values == 6:
        return CostSource()
    if "cost" in info:
        held = info["cost"]
        if isinstance(held, Mapping):
            return _several({name: CostSource("cost", part=name) for name in held})
        if isinstance(held, list | tuple | np.ndarray) and np.ndim(held) == 1 and len(held) > 1:
            return _several({f"cost_{place}": CostSource("cost", part=place) for place in range(len(held))})
        return CostSource("cost")
    keys = ", ".join(map(str, info)) or "empty"
    raise UserError(
        f"{env_id} reports no cost: its step returns {values} values and info has no 'cost' (it has: {keys}); {HOW_TO}"
    )
