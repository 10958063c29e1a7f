"""From a policy's raw action to what the environment takes, in an ONNX graph."""

from collections.abc import Sequence
from functools import reduce
from operator import getitem
from typing import NamedTuple

import numpy as np

from qcrl.envs.host.actions import Actions
from qcrl.envs.host.products import Product, box, placed
from qcrl.runs.numpy_policy import NumpyPolicy
from qcrl.runs.onnx_graph import Graph


class Part(NamedTuple):
    """An output that the environment takes, or a part of what it takes."""

    value: str
    whole: bool
    shape: Sequence[int]


def to_env(graph: Graph, raw: str, policy: NumpyPolicy) -> dict[str, Part]:
    """What the environment takes; of a dictionary or tuple each part, under its keys and places."""
    actions = policy.env.actions
    if actions is None:
        return {"action": Part(raw, False, (policy.env.action_size,))}
    if not isinstance(actions, Product):
        return {"action": _chosen(graph, raw, actions) if actions.discrete else _mapped(graph, raw, actions)}
    parts, number, first = {}, 0, actions.numbers
    for path, leaf in placed(actions.parts):
        if leaf["kind"] == "box":
            own = box(leaf)
            part = _mapped(graph, graph.columns(raw, number, number + own.numbers), own)
            number += own.numbers
        else:
            taken = []
            for size, start in zip(leaf["counts"], leaf["start"]):
                taken.append(_option(graph, graph.columns(raw, first, first + size), start, keepdims=1))
                first += size
            shape = [] if leaf["shape"] is None else leaf["shape"]
            part = Part(graph.add("Reshape", graph.join(taken), graph.constant([-1, *shape], np.int64)), True, shape)
        parts[named(path)] = part
    return parts


def named(path: Sequence[str | int]) -> str:
    """The output of a part of an action."""
    return ".".join(map(str, ("action", *path)))


def _option(graph: Graph, one_hot: str, start: int, keepdims: int) -> str:
    chosen = graph.add("ArgMax", one_hot, axis=-1, keepdims=keepdims)
    return graph.add("Add", chosen, graph.constant(start, np.int64))


def _chosen(graph: Graph, raw: str, actions: Actions) -> Part:
    return Part(_option(graph, raw, actions.start, keepdims=0), True, ())


def _mapped(graph: Graph, raw: str, actions: Actions) -> Part:
    low, high, free, middle, half, _ = actions.map
    scaled = graph.add("Mul", graph.clip(raw, -1.0, 1.0), graph.constant(half))
    mapped = graph.add("Add", scaled, graph.constant(middle))
    if free is not None:
        mapped = graph.add("Where", graph.constant(free, bool), raw, mapped)
    limited = graph.clip(mapped, low, high)
    return Part(graph.add("Reshape", limited, graph.constant([-1, *actions.shape], np.int64)), False, actions.shape)


def away(policy: NumpyPolicy, raw: np.ndarray, found: dict[str, np.ndarray]) -> float:
    """How far outputs lie from what the raw action is to the environment, as a share of the largest of the rows.

    What NumPy rounds to few digits may lie so far away.
    """
    actions = policy.env.actions
    built = raw if actions is None else actions.to_env(raw)
    nested = isinstance(actions, Product) and actions.nested
    paths = [path for path, _ in placed(actions.parts)] if isinstance(actions, Product) and nested else [()]
    worst = 0.0
    for path in paths:
        own = np.array([reduce(getitem, path, row) for row in built])
        rounded = np.finfo(own.dtype).eps if own.dtype == np.float16 else 0.0
        apart = np.abs(own.astype(float) - found[named(path)]).max(initial=0.0)
        worst = max(worst, float(apart / max(1.0, np.abs(own.astype(float)).max(initial=0.0)) - rounded))
    return worst
