"""Where the cost of a host environment's step comes from. A missing cost is an error, never zero."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qcrl import errors
from qcrl.envs.host.values import number
from qcrl.errors import UserError, load
from qcrl.kinds import Tree

Info = dict[str, Any]
"""What an environment reports with a step or a reset, by name."""
CostFunction = Callable[[Tree, Tree, Tree, Info], float]
"""cost_fn(obs, action, next_obs, info), with what the environment itself takes and gives."""
SIX_TUPLE = "6-tuple"
QUOTED = r'info\["(.*)"\]'
HOW_TO = (
    "give cost=KEY for info[KEY], or cost=cost_fn(obs, action, next_obs, info); "
    "on the command line --cost KEY or module:function"
)


@dataclass(frozen=True)
class CostSource:
    """The third value of a step of six, an entry of info, or a function."""

    key: str | None = None
    function: CostFunction | None = None
    function_name: str = ""

    def __str__(self) -> str:
        if self.function is not None:
            return self.function_name
        return SIX_TUPLE if self.key is None else f'info["{self.key}"]'

    def raw(self, obs: Tree, action: Tree, next_obs: Tree, info: Info, third: object) -> object:
        """What the environment says; None where it says nothing. `third` is the third value of a step that has six."""
        if self.function is not None:
            return self.function(obs, action, next_obs, info)
        return third if self.key is None else info.get(self.key)

    def read(self, obs: Tree, action: Tree, next_obs: Tree, info: Info, third: object) -> float:
        """The cost of one step, checked."""
        cost = self.raw(obs, action, next_obs, info, third)
        if cost is None:
            raise UserError(f"the step has no cost ({self} is missing); report it at every step, or {HOW_TO}")
        return check(cost)


def check(cost: object) -> float:
    """The cost as a number, finite and not negative."""
    value = number(cost, "cost")
    if value < 0:
        raise UserError(f"the cost is {value}, but must not be negative; mend its cost")
    return value


def parse(cost: str | CostFunction | CostSource | None) -> CostSource | None:
    """What the user gave: nothing, a key of info, module:function, or a function."""
    if cost is None or isinstance(cost, CostSource):
        return cost
    if callable(cost):
        name = getattr(cost, "__qualname__", type(cost).__qualname__)
        errors.trust(getattr(cost, "__module__", ""))
        return CostSource(function=cost, function_name=f"{getattr(cost, '__module__', '')}:{name}")
    if not isinstance(cost, str) or not cost:
        raise UserError(f"cost is {cost!r}, but must name where the cost is; {HOW_TO}")
    if cost == SIX_TUPLE:
        return CostSource()
    if quoted := re.fullmatch(QUOTED, cost):
        return CostSource(quoted[1])
    return CostSource(function=load(cost, "cost"), function_name=cost) if ":" in cost else CostSource(cost)


def require_trust(cost: str | None) -> None:
    """Raise where a file names a function that the caller has not."""
    if cost is not None and not re.fullmatch(QUOTED, cost):
        errors.require_trust(cost, "cost", calls=True)


def find(info: Info, values: int, env_id: str) -> CostSource:
    """The cost of an environment whose step returned so many values and this info."""
    if values == 6:
        return CostSource()
    if "cost" in info:
        return CostSource("cost")
    keys = ", ".join(map(str, info)) or "empty"
    raise UserError(
        f"{env_id} reports no cost: its step returns {values} values and info has no 'cost' (it has: {keys}); {HOW_TO}"
    )
