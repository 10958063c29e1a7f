"""GRID.toml: which algorithms train on which environments under which constraints. A mistake names its line and key."""

import dataclasses
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from qcrl.algos import hyperparameters
from qcrl.algos.algorithm import Algorithm
from qcrl.algos.find import build, default_preset
from qcrl.algos.find import find as find_algorithm
from qcrl.constraints import Constraint, Outage, Together, from_dict, together
from qcrl.envs.base import suited_preset
from qcrl.envs.find import find
from qcrl.errors import UserError, check_name
from qcrl.kinds import Json, Settings
from qcrl.runs.files import plain
from qcrl.training.checks import MOST_LANES, all_trained_under


@dataclass(frozen=True)
class Cell:
    """One algorithm on one environment, with all its seeds and constraints.

    Every field is a key of the file: at its top for all algorithms, or under one of them for that one alone.
    """

    name: str = ""
    """The algorithm (only under an algorithm)."""
    label: str = ""
    """Name of the algorithm's folders; algorithm and preset unless given (only under an algorithm)."""
    preset: str = ""
    """Values of the hyper-parameters: fast, tuned, paper, authors; what `qcrl train` takes unless given."""
    environments: tuple[str, ...] = ()
    """Ids of environments; each makes a cell of its own."""
    cost: str = ""
    """Where environments in Python have their cost: a key of info, or module:function; info["cost"] unless given."""
    limits: tuple[float, ...] = (15.0,)
    """Allowed episode costs."""
    probabilities: tuple[float, ...] = (0.1,)
    """Shares of episodes that may cost more."""
    constraints: tuple[Json, ...] = field(default=(), hash=False)
    """Constraints that hold together, instead of limits and probabilities: tables of kind, cost, limit and so on."""
    learning_rates: tuple[float, ...] = ()
    """Learning rates that are trained side by side; the preset's unless given."""
    seeds: int = 1
    """How many seeds."""
    first_seed: int = 0
    """The first of them."""
    steps: int = 1_000_000
    """Environment steps per lane."""
    episodes: int = 1000
    """Fresh episodes that each policy is evaluated on at the end; 0 for none."""
    max_lanes: int = 0
    """Most lanes in one group; 0 lets the device's memory decide."""
    overrides: Settings = field(default_factory=dict, hash=False)
    """Hyper-parameters of the algorithm, by name."""

    @property
    def environment(self) -> str:
        return self.environments[0]

    @property
    def path(self) -> str:
        """Name of the cell, and its folder."""
        return f"{self.environment}/{self.label}"

    @property
    def asked(self) -> list[Constraint | Together]:
        """What is trained side by side."""
        if self.constraints:
            return [Together(tuple(map(from_dict, self.constraints)))]
        return [Outage(limit, probability) for probability in self.probabilities for limit in self.limits]

    @property
    def algorithm(self) -> Algorithm:
        """With the preset's values and the overrides."""
        return hyperparameters.replace(build(self.name, self.preset or None), self.overrides)


HINTS = get_type_hints(Cell)
LISTS = ("environments", "limits", "probabilities", "learning_rates")
LEAST = {"seeds": 1, "first_seed": 0, "steps": 1, "episodes": 0, "max_lanes": 0}
CLOSINGS = ("", "]", "]]", "]}", "]}]", "]}}", "]}}]", "}", "}}", "}]", "}}]")
"""What may be open at the end of a line."""
Where = Callable[..., str]
"""Gives the place of a key, or of a part of its value, as the beginning of a message."""


def read_grid(path: str | Path) -> list[Cell]:
    """The cells of a grid file."""
    try:
        text = plain(Path(path)).read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); give the file of a grid") from None
    except RecursionError:
        raise UserError(f"{path} is not a grid: it is nested too deeply; give the file of a grid") from None
    except tomllib.TOMLDecodeError as error:
        problem = str(error).replace("end of document", f"line {text.rstrip().count(chr(10)) + 1}, the end of the file")
        raise UserError(f"{path} is not a TOML file: {problem}; mend that line") from None
    return cells(content, text, str(path))


def cells(content: Json, text: str = "", source: str = "the grid") -> list[Cell]:
    """The cells that the content of a grid file describes; `text` is the file itself, to find lines in."""

    def where(*path: str | int) -> str:
        line = _line(text, path)
        key = next(part for part in reversed(path) if isinstance(part, str))
        return f"{source}, line {line}, {key}" if line else f"{source}, {key}"

    shared = dict(content)
    entries = shared.pop("algorithms", None)
    if not isinstance(entries, list) or not entries:
        raise UserError(
            f"{where('algorithms')}: a list of algorithms is needed, but "
            f"{'it is missing' if entries is None else f'{entries!r} is given'}; add [[algorithms]] with a name"
        )
    common = _values(shared, [key for key in HINTS if key not in ("name", "label")], where)
    found: dict[str, Cell] = {}
    for number, entry in enumerate(entries):
        table = entry if isinstance(entry, dict) else {"name": entry}

        def place(*path: str | int, number: int = number, entry: object = entry, table: Json = table) -> str:
            keys = [part for part in path if isinstance(part, str)]
            if _has(shared, keys) and not _has(table, keys):
                return where(*path)
            return (
                where("algorithms", number, *path)
                if entry is table or keys != ["name"]
                else where("algorithms", number)
            )

        own = _values(table, list(HINTS), place)
        overrides = {**common.get("overrides", {}), **own.get("overrides", {})}
        for cell in _check(Cell(**{**common, **own, "overrides": overrides}), place):
            if cell.path in found:
                raise UserError(
                    f"{place('label')}: there are two cells {cell.path}; give one of the algorithms another label"
                )
            found[cell.path] = cell
    return list(found.values())


def _values(table: Json, known: list[str], where: Where) -> Settings:
    """Every value as the type that its key asks for."""
    values = {}
    for key, value in table.items():
        with _at(where, key):
            check_name("key", key, known)
        hint = HINTS[key]
        if value == "":
            raise UserError(f"{where(key)}: it is empty; give a value, or leave the key out")
        try:
            values[key] = dict(value) if key == "overrides" and isinstance(value, dict) else _coerce(hint, value)
        except (ValueError, TypeError, OverflowError):
            raise UserError(f"{where(key)}: {value!r} is given, but it must be {_describe(hint)}; change it") from None
    return values


def _coerce(hint: object, value: object) -> object:
    if hint == Settings:
        raise ValueError
    if hint == tuple[Json, ...]:
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise ValueError
        return tuple(value)
    return hyperparameters.coerce(hint, value)


def _describe(hint: object) -> str:
    if hint == tuple[Json, ...]:
        return "a list of tables, one for each constraint"
    return "a table of hyper-parameters" if hint == Settings else hyperparameters.describe(hint)


def _check(cell: Cell, where: Where) -> Iterator[Cell]:
    """One cell for each environment, once all values are known to be possible."""
    for key in LISTS:
        values = getattr(cell, key)
        if not values and key != "learning_rates":
            raise UserError(f"{where(key)}: the list is empty, but at least one value is needed; add one")
        if len(set(values)) < len(values):
            raise UserError(f"{where(key)}: a value is there twice; give each of them once")
    for key, least in LEAST.items():
        if getattr(cell, key) < least:
            raise UserError(f"{where(key)}: {getattr(cell, key)} is given, but it must be at least {least}; change it")
    lanes = cell.seeds * len(cell.limits) * len(cell.probabilities) * max(1, len(cell.learning_rates))
    if lanes > MOST_LANES:
        raise UserError(
            f"{where('seeds')}: that makes {lanes:,} lanes, but a cell has at most {MOST_LANES:,}; change it"
        )
    for number, limit in enumerate(cell.limits):
        with _at(where, "limits", number):
            Outage(limit, 0.5)
    for number, probability in enumerate(cell.probabilities):
        with _at(where, "probabilities", number):
            Outage(1.0, probability)
    for number, table in enumerate(cell.constraints):
        with _at(where, "constraints", number):
            from_dict(table)
    if cell.constraints and (cell.limits, cell.probabilities) != (Cell.limits, Cell.probabilities):
        raise UserError(f"{where('constraints')}: limits and probabilities are given as well; give one or the other")
    with _at(where, "name"):
        find_algorithm(cell.name)
    with _at(where, "preset"):
        build(cell.name, cell.preset or None)
    try:
        algorithm = cell.algorithm
    except UserError as error:
        named = [word for word in re.findall(r"\w+", str(error)) if word in cell.overrides]
        raise UserError(f"{where('overrides', *named[:1])}: {error}") from None
    with _at(where, "constraints" if cell.constraints else "name"):
        for each in cell.asked:
            all_trained_under(algorithm, together(each))
    for number, rate in enumerate(cell.learning_rates):
        with _at(where, "learning_rates", number):
            hyperparameters.replace(algorithm, {"learning_rate": rate})
    for number, environment in enumerate(cell.environments):
        with _at(where, "environments", number):
            suited = suited_preset(find(environment, cell.cost or None))
        preset = cell.preset or default_preset(cell.name, suited) or ""
        label = cell.label or "-".join(filter(None, [cell.name.replace(":", "."), preset]))
        if not re.fullmatch(r"[\w.+=-]+", label) or label.startswith("."):
            raise UserError(
                f"{where('label')}: {label!r} cannot be a folder's name; use letters, digits, -, _, = and ."
            )
        yield dataclasses.replace(cell, label=label, preset=preset, environments=(environment,))


@contextmanager
def _at(where: Where, *path: str | int) -> Iterator[None]:
    """Mistakes found inside get the place of a key."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where(*path)}: {error}") from None


def _line(text: str, path: Sequence[str | int]) -> int | None:
    """Where a key or an entry of a list begins, or what it is missing in: the fewest lines that are a file with it."""
    lines = text.split("\n")
    for number in range(1, len(lines) + 1 if path else 0):
        for closing in CLOSINGS:
            with suppress(tomllib.TOMLDecodeError):
                if _has(tomllib.loads("\n".join([*lines[:number], closing])), path):
                    return number
    return _line(text, path[:-1]) if path else None


def _has(content: Any, path: Sequence[str | int]) -> bool:
    """Whether there is something at the end of this path of keys and numbers."""
    try:
        for part in path:
            content = content[part]
    except (LookupError, TypeError):
        return False
    return True
