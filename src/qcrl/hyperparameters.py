"""Hyper-parameters by name: from a preset and overrides, from text, to and from JSON, with their documentation."""

import ast
import contextlib
import dataclasses
import difflib
import inspect
import math
import numbers
import textwrap
import types
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from qcrl.algos import ALGORITHMS, PRESETS, preset
from qcrl.errors import UserError


def build(name: str, preset_name: str) -> Any:
    """The algorithm with a preset's values."""
    check_name("algorithm", name, ALGORITHMS)
    check_name("preset", preset_name, PRESETS[name])
    return preset(name, preset_name)


def replace(algorithm: Any, overrides: dict[str, Any]) -> Any:
    """The algorithm with some fields changed."""
    hints = get_type_hints(type(algorithm))
    values = {}
    for field, value in overrides.items():
        check_name("hyper-parameter", field, field_names(type(algorithm)))
        try:
            values[field] = coerce(hints[field], value)
        except (ValueError, OverflowError):
            raise UserError(f"{field} is {value!r}, but must be {describe(hints[field])}; change its value") from None
    return dataclasses.replace(algorithm, **values)


def check_name(kind: str, name: str, known: Iterable[str]) -> None:
    """A name must be one of the known ones; if not, the nearest is suggested."""
    known = list(known)
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"there is no {kind} {name!r}; {hint}the known ones are {', '.join(known)}")


def name_of(algorithm: Any) -> str:
    for name, kind in ALGORITHMS.items():
        if type(algorithm) is kind:
            return name
    raise UserError(f"{type(algorithm).__name__} is not an algorithm of qcrl; add it to qcrl.algos.ALGORITHMS")


def field_names(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if field.init]


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
            with contextlib.suppress(ValueError):
                return coerce(option, value)
    elif get_origin(hint) is tuple:
        parts = value if isinstance(value, list | tuple) else (value,)
        return tuple(coerce(options[0], part) for part in parts)
    elif get_origin(hint) is Literal:
        if value in options:
            return value
    elif hint in (int, float):
        if isinstance(value, numbers.Real) and not isinstance(value, bool) and hint(value) == value:
            return hint(value)
    elif isinstance(value, hint):
        return value
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


def to_json(algorithm: Any) -> dict[str, Any]:
    """Name and fields. JSON has no infinity: those numbers are written as words."""
    fields = {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in dataclasses.asdict(algorithm).items()
    }
    return {"name": name_of(algorithm), "fields": fields}


def from_json(description: dict[str, Any]) -> Any:
    """The algorithm that `to_json` described."""
    check_name("algorithm", description["name"], ALGORITHMS)
    words = {"inf": math.inf, "-inf": -math.inf}
    fields = {
        name: words.get(value, value) if isinstance(value, str) else value
        for name, value in description["fields"].items()
    }
    return replace(ALGORITHMS[description["name"]](), fields)
