"""Actions with several parts: MultiDiscrete, MultiBinary, and Dict and Tuple of these, of Box and of Discrete.

The policy's action has all numbers first, then a one-hot group for every choice, in the order of the space.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qcrl.envs.host.actions import Actions
from qcrl.errors import UserError
from qcrl.kinds import GymSpace, Json

Leaf = dict[str, Any]
"""A part without parts of its own, as JSON has it."""


@dataclass(frozen=True)
class Product:
    """How a policy's action becomes one of several parts."""

    tree: str
    """The parts, as JSON."""

    @property
    def discrete(self) -> bool:
        """Whether there are choices only."""
        return self.numbers == 0

    @cached_property
    def parts(self) -> Json:
        return json.loads(self.tree)

    @cached_property
    def choices(self) -> tuple[int, ...]:
        """How many options each choice has."""
        return tuple(count for leaf in leaves(self.parts) for count in leaf.get("counts", ()))

    @cached_property
    def numbers(self) -> int:
        return sum(math.prod(leaf["shape"]) for leaf in leaves(self.parts) if leaf["kind"] == "box")

    @property
    def nested(self) -> bool:
        """Whether actions are dictionaries or tuples."""
        return "parts" in self.parts

    @property
    def size(self) -> int:
        """Of the policy's action."""
        return self.numbers + sum(self.choices)

    def to_env(self, actions: np.ndarray) -> Any:
        """What the environment takes; for a batch, an array with one entry for each row."""
        if actions.ndim == 1:
            return self.to_env(actions[None])[0]
        options = (actions[:, group].argmax(axis=1) for group in self._groups)
        built = _build(self.parts, (own.to_env(actions[:, place]) for own, place in self._boxes), options)
        if not self.nested:
            return built
        rows = np.empty(len(actions), object)
        for place in range(len(actions)):
            rows[place] = _row(built, place)
        return rows

    def allows(self, mask: np.ndarray) -> bool:
        """Whether action masks, which are of the options, leave one at every choice."""
        groups = (slice(each.start - self.numbers, each.stop - self.numbers) for each in self._groups)
        return all(bool(np.any(mask[..., each], axis=-1).all()) for each in groups)

    @cached_property
    def _groups(self) -> list[slice]:
        """Where the options of every choice lie in an action."""
        ends = self.numbers + np.cumsum(self.choices, dtype=int)
        return [slice(end - count, end) for count, end in zip(self.choices, ends)]

    @cached_property
    def _boxes(self) -> list[tuple[Actions, slice]]:
        """The mapping of every box, and where its numbers lie in an action."""
        found = [box(leaf) for leaf in leaves(self.parts) if leaf["kind"] == "box"]
        ends = np.cumsum([each.numbers for each in found], dtype=int)
        return [(each, slice(end - each.numbers, end)) for each, end in zip(found, ends)]

    def as_dict(self) -> Json:
        """As JSON would give it back."""
        return {"tree": self.tree}

    def __str__(self) -> str:
        return f"actions of {self.numbers} numbers and {len(self.choices)} choices, each drawn by itself"


def leaves(part: Json) -> Iterator[Leaf]:
    """The parts of a tree that have no parts, in their order."""
    return (leaf for _, leaf in placed(part))


def placed(part: Json, *path: str | int) -> Iterator[tuple[tuple[str | int, ...], Leaf]]:
    """They, each with the keys and places that lead to it."""
    if "parts" in part:
        inner = part["parts"]
        for key, each in inner.items() if isinstance(inner, dict) else enumerate(inner):
            yield from placed(each, *path, key)
    else:
        yield path, part


def mask_row(raw: Any, part: Json, batch: tuple[int, ...] = ()) -> np.ndarray:
    """An action mask, or a batch of them, as one row, in the order of the space whatever the order of a dictionary.

    None allows all of a part; a box has nothing that could be masked.
    """
    if raw is None:
        return np.ones((*batch, sum(sum(leaf.get("counts", ())) for leaf in leaves(part))))
    if not isinstance(raw, dict | tuple | list):
        return np.asarray(raw).reshape(*batch, -1)
    rows = [mask_row(each, inner, batch) for each, inner in _paired(raw, part.get("parts"))]
    return np.concatenate([np.ones((*batch, 0)), *rows], axis=-1)


def _paired(raw: Any, inner: Any) -> list[tuple[Any, Json]]:
    """The parts of a mask with those of the space, where it has such parts."""
    if isinstance(raw, dict) and isinstance(inner, dict):
        named = {str(key): each for key, each in raw.items()}
        if unknown := named.keys() - inner.keys():
            raise UserError(f"the action mask has {min(unknown)!r}, but the actions have {', '.join(inner)}")
        return [(named[key], each) for key, each in inner.items() if key in named]
    values = list(raw.values()) if isinstance(raw, dict) else list(raw)
    alike = isinstance(inner, list) and len(inner) == len(values)
    return list(zip(values, inner if alike else [{}] * len(values)))


def box(leaf: Leaf) -> Actions:
    """The mapping of a part that is a box."""
    return Actions(False, tuple(leaf["shape"]), leaf["dtype"], 0, tuple(leaf["low"]), tuple(leaf["high"]))


def describe(space: GymSpace) -> Json | None:
    """The tree of a space; None where it has a part that cannot be trained."""
    from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

    if isinstance(space, Dict | Tuple):
        inner = {key: describe(each) for key, each in space.spaces.items()} if isinstance(space, Dict) else None
        listed = list(inner.values()) if inner is not None else [describe(each) for each in space.spaces]
        return {"parts": inner or listed} if listed and None not in listed else None
    if isinstance(space, Discrete):
        return {
            "kind": "choice",
            "counts": [int(space.n)],
            "start": [int(space.start)],
            "shape": None,
            "dtype": "int64",
        }
    if isinstance(space, MultiDiscrete):
        start = np.asarray(getattr(space, "start", np.zeros_like(space.nvec))).ravel().tolist()
        counts = space.nvec.ravel().tolist()
        shape, dtype = list(space.nvec.shape), str(space.dtype)
        return {"kind": "choice", "counts": counts, "start": start, "shape": shape, "dtype": dtype}
    if isinstance(space, MultiBinary):
        count = math.prod(space.shape)
        shape, dtype = list(space.shape), str(space.dtype)
        return {"kind": "choice", "counts": [2] * count, "start": [0] * count, "shape": shape, "dtype": dtype}
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating) and space.low.size:
        bound = lambda values: [float(x) if np.isfinite(x) else None for x in values.ravel()]
        shape, dtype = list(space.shape), str(space.dtype)
        return {"kind": "box", "shape": shape, "dtype": dtype, "low": bound(space.low), "high": bound(space.high)}
    return None


def _build(part: Json, boxes: Iterator[np.ndarray], chosen: Iterator[np.ndarray]) -> Any:
    """A part of a batch of actions, from the boxes and choices that are left."""
    if "parts" in part:
        inner = part["parts"]
        if isinstance(inner, dict):
            return {key: _build(each, boxes, chosen) for key, each in inner.items()}
        return tuple(_build(each, boxes, chosen) for each in inner)
    if part["kind"] == "box":
        return next(boxes)
    columns = [start + next(chosen) for start in part["start"]]
    if part["shape"] is None:
        return list(columns[0])
    return np.stack(columns, axis=1).astype(part["dtype"]).reshape(-1, *part["shape"])


def _row(built: Any, place: int) -> Any:
    """One action of a batch."""
    if isinstance(built, dict):
        return {key: _row(each, place) for key, each in built.items()}
    if isinstance(built, tuple):
        return tuple(_row(each, place) for each in built)
    # Of a box without dimensions an array as well, but of a choice a number.
    return built[place, ...] if isinstance(built, np.ndarray) else built[place]
