"""Hyper-parameters by name: from a preset and overrides, from text, to and from JSON, with their documentation."""

import ast
import contextlib
import dataclasses
import inspect
import math
import numbers
import textwrap
import types
from itertools import pairwise
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from qcrl.algos.algorithm import Algorithm
from qcrl.algos.find import find, name_of
from qcrl.errors import UserError, check_name
from qcrl.kinds import Json, Settings
from qcrl.named import require_trust


def replace(algorithm: Algorithm, overrides: Settings) -> Algorithm:
    """The algorithm with some fields changed."""
    hints = get_type_hints(type(algorithm))
    values = {}
    for field, value in overrides.items():
        check_name("hyper-parameter", field, field_names(type(algorithm)))
        try:
            values[field] = coerce(hints[field], value)
        except (ValueError, OverflowError, TypeError):
            raise UserError(f"{field} is {value!r}, but must be {describe(hints[field])}; change its value") from None
    return dataclasses.replace(algorithm, **values)


def field_names(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.init]


def grouped(kind: type[Algorithm]) -> dict[str, list[str]]:
    """The fields under a heading each, after the class that declares them."""
    groups: dict[str, list[str]] = {}
    for name in field_names(kind):
        home = next(base for base in reversed(kind.__mro__) if name in vars(base).get("__annotations__", {}))
        group = (home.__doc__ or "").rstrip(".") if home.__name__.endswith("Settings") else home.__name__
        groups.setdefault("All algorithms" if home is Algorithm else group, []).append(name)
    return groups


def documentation(kind: type) -> dict[str, str]:
    """The one-line docstring under each field of a dataclass, its bases included."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for field, text in pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                docs[field.target.id] = inspect.cleandoc(str(text.value.value))
    return {name: docs.get(name, "") for name in field_names(kind)}


def parse(text: str) -> Any:
    """The number, list, truth value, none or word that was typed."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for read in (ast.literal_eval, float):
        with contextlib.suppress(ValueError, SyntaxError):
            return read(text)
    return text


def coerce(hint: Any, value: Any) -> Any:
    """The value as the type that a field asks for. Raises ValueError where it is none."""
    options = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        for option in options:
            with contextlib.suppress(ValueError, OverflowError):
                return coerce(option, value)
    elif get_origin(hint) is tuple:
        parts = value if isinstance(value, list | tuple) else (value,)
        return tuple(coerce(options[0], part) for part in parts)
    elif get_origin(hint) is Literal:
        word = "none" if value is None else value  # `parse` cannot know that a field has a choice of that name
        if word in options:
            return word
    elif hint in (int, float):
        if isinstance(value, numbers.Real) and not isinstance(value, bool) and hint(value) == value:
            return hint(value)
    elif isinstance(value, hint):
        return value
    elif hint is str and value is None:
        return "none"
    raise ValueError(f"{value!r} is not {describe(hint)}")


def describe(hint: Any) -> str:
    """A type in words."""
    options = get_args(hint)
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(str, options))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join("none" if option is type(None) else describe(option) for option in options)
    if get_origin(hint) is tuple:
        return "a list, each " + describe(options[0])
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}.get(hint, str(hint))


def to_json(algorithm: Algorithm) -> Json:
    """Name and fields. JSON has no infinity: those numbers are written as words."""
    fields = {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in dataclasses.asdict(algorithm).items()
    }
    return {"name": name_of(algorithm), "label": type(algorithm).label or type(algorithm).__name__, "fields": fields}


def from_json(description: Json) -> Algorithm:
    """The algorithm that `to_json` described."""
    words = {"inf": math.inf, "-inf": -math.inf}
    fields = {
        name: words.get(value, value) if isinstance(value, str) else value
        for name, value in description["fields"].items()
    }
    require_trust(description["name"], "algorithm")
    return replace(find(description["name"])(), fields)
