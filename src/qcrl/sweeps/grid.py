"""GRID.toml: which algorithms are trained on which environments under which constraints. A mistake names its line and key."""

import dataclasses
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from qcrl import hyperparameters
from qcrl.constraints import Outage
from qcrl.envs.find import find
from qcrl.errors import UserError


@dataclass(frozen=True)
class Cell:
    """One algorithm on one environment, with all its seeds and constraints.

    Every field is a key of the file: at its top for all algorithms, or under one of them for that one alone.
    """

    name: str = ""
    """The algorithm (only under an algorithm)."""
    label: str = ""
    """Name of the algorithm's folders; algorithm and preset unless given (only under an algorithm)."""
    preset: str = "fast"
    """Values of the hyper-parameters: fast, tuned, paper or authors."""
    environments: tuple[str, ...] = ()
    """Ids of environments; each makes a cell of its own."""
    limits: tuple[float, ...] = (15.0,)
    """Allowed episode costs."""
    probabilities: tuple[float, ...] = (0.1,)
    """Shares of episodes that may cost more."""
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
    overrides: dict[str, Any] = field(default_factory=dict, hash=False)
    """Hyper-parameters of the algorithm, by name."""

    @property
    def environment(self) -> str:
        return self.environments[0]

    @property
    def path(self) -> str:
        """Name of the cell, and its folder."""
        return f"{self.environment}/{self.label}"

    @property
    def constraints(self) -> list[Outage]:
        return [Outage(limit, probability) for probability in self.probabilities for limit in self.limits]

    @property
    def algorithm(self) -> Any:
        """With the preset's values and the overrides."""
        return hyperparameters.replace(hyperparameters.build(self.name, self.preset), self.overrides)


HINTS = get_type_hints(Cell)
LISTS = ("environments", "limits", "probabilities", "learning_rates")
LEAST = {"seeds": 1, "first_seed": 0, "steps": 1, "episodes": 0, "max_lanes": 0}
Where = Callable[[str], str]
"""Gives a key's place in the file, as the beginning of a message."""


def read_grid(path: str | Path) -> list[Cell]:
    """The cells of a grid file."""
    try:
        text = Path(path).read_text()
        content = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); give the file of a grid") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not a TOML file: {error}; mend that line") from None
    return cells(content, text, str(path))


def cells(content: dict[str, Any], text: str = "", source: str = "the grid") -> list[Cell]:
    """The cells that the content of a grid file describes; `text` is the file itself, to find lines in."""
    lines = _lines(text)

    def where(block: int) -> Where:
        def place(key: str) -> str:
            line = lines.get((block, key), lines.get((block, "")))
            return f"{source}, line {line}, {key}" if line else f"{source}, {key}"

        return place

    top, shared = where(0), dict(content)
    entries = shared.pop("algorithms", None)
    if not isinstance(entries, list) or not entries:
        raise UserError(
            f"{top('algorithms')}: a list of algorithms is needed, but "
            f"{'it is missing' if entries is None else f'{entries!r} is given'}; add [[algorithms]] with a name"
        )
    common = _values(shared, [key for key in HINTS if key not in ("name", "label")], top)
    found: dict[str, Cell] = {}
    for number, entry in enumerate(entries, 1):
        inline = not isinstance(entry, dict)
        place = top if inline or (number, "") not in lines else where(number)
        own = _values({"name": entry} if inline else entry, list(HINTS), place)
        overrides = {**common.get("overrides", {}), **own.get("overrides", {})}
        both = Cell(**{**common, **own, "overrides": overrides})
        overridden = {*own, *own.get("overrides", {})}
        inherited = {*common, *common.get("overrides", {})} - overridden
        for cell in _check(both, partial(_origin, top, place, inherited)):
            if cell.path in found:
                raise UserError(
                    f"{place('label')}: there are two cells {cell.path}; give one of the algorithms another label"
                )
            found[cell.path] = cell
    return list(found.values())


def _origin(top: Where, place: Where, inherited: set[str], key: str) -> str:
    return (top if key in inherited else place)(key)


def _values(table: dict[str, Any], known: list[str], where: Where) -> dict[str, Any]:
    """Every value as the type that its key asks for."""
    values = {}
    for key, value in table.items():
        try:
            hyperparameters.check_name("key", key, known)
        except UserError as error:
            raise UserError(f"{where(key)}: {error}") from None
        hint = HINTS[key]
        try:
            values[key] = dict(value) if key == "overrides" and isinstance(value, dict) else _coerce(hint, value)
        except (ValueError, TypeError):
            raise UserError(f"{where(key)}: {value!r} is given, but it must be {_describe(hint)}; change it") from None
    return values


def _coerce(hint: Any, value: Any) -> Any:
    if hint == dict[str, Any]:
        raise ValueError
    return hyperparameters.coerce(hint, value)


def _describe(hint: Any) -> str:
    return "a table of hyper-parameters" if hint == dict[str, Any] else hyperparameters.describe(hint)


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
    for key, limit, probability in (("limits", None, 0.5), ("probabilities", 1.0, None)):
        for value in getattr(cell, key):
            with _at(where, key):
                Outage(value if limit is None else limit, value if probability is None else probability)
    with _at(where, "name"):
        hyperparameters.build(cell.name, next(iter(hyperparameters.PRESETS.get(cell.name, {"": None}))))
    with _at(where, "preset"):
        hyperparameters.build(cell.name, cell.preset)
    try:
        algorithm = cell.algorithm
    except UserError as error:
        key = next((key for key in cell.overrides if key in re.split(r"[\s'\"]", str(error))), "overrides")
        raise UserError(f"{where(key)}: {error}") from None
    for rate in cell.learning_rates:
        with _at(where, "learning_rates"):
            hyperparameters.replace(algorithm, {"learning_rate": rate})
    label = cell.label or f"{cell.name}-{cell.preset}"
    if not re.fullmatch(r"[\w.+=-]+", label) or label.startswith("."):
        raise UserError(f"{where('label')}: {label!r} cannot be a folder's name; use letters, digits, -, _, = and .")
    for environment in cell.environments:
        with _at(where, "environments"):
            find(environment)
        yield dataclasses.replace(cell, label=label, environments=(environment,))


class _at:
    """Mistakes found inside get the place of a key."""

    def __init__(self, where: Where, key: str) -> None:
        self.where, self.key = where, key

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: Any, error: Any, _trace: Any) -> None:
        if isinstance(error, UserError):
            raise UserError(f"{self.where(self.key)}: {error}") from None


def _lines(text: str) -> dict[tuple[int, str], int]:
    """The line of every key: block 0 is the top of the file, block n the nth algorithm; "" is the block's first line."""
    found: dict[tuple[int, str], int] = {}
    block = algorithms = 0
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*\[\[\s*algorithms\s*\]\]", line):
            block = algorithms = algorithms + 1
            found[block, ""] = number
        elif header := re.match(r"\s*\[\s*([\w.]+)\s*\]", line):
            block = algorithms if header[1].startswith("algorithms.") else 0
            found.setdefault((block, header[1].split(".")[-1]), number)
        elif key := re.match(r"""\s*["']?([\w-]+(?:\.[\w-]+)*)["']?\s*=""", line):
            for part in key[1].split("."):
                found.setdefault((block, part), number)
    return found
