"""Nodes of an ONNX graph, built one by one."""

from collections.abc import Sequence
from typing import Any

import numpy as np


class Graph:
    """Nodes in the order in which they are added; values are known by name."""

    def __init__(self) -> None:
        import onnx

        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: dict[str, int] = {}

    def input(self, name: str, size: int) -> str:
        self.inputs[name] = size
        return name

    def constant(self, value: Any, dtype: type = np.float32) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def add(self, operator: str, *values: str, outputs: Sequence[str] = (), **attributes: Any) -> str:
        names = list(outputs) or [f"n{len(self.nodes)}"]
        self.nodes.append(self.onnx.helper.make_node(operator, list(values), names, **attributes))
        return names[0]

    def linear(self, x: str, layer: tuple[np.ndarray, np.ndarray]) -> str:
        return self.add("Add", self.add("MatMul", x, self.constant(layer[0])), self.constant(layer[1]))

    def clip(self, x: str, low: Any, high: Any) -> str:
        return self.add("Min", self.add("Max", x, self.constant(low)), self.constant(high))

    def join(self, parts: Sequence[str]) -> str:
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=-1)

    def columns(self, x: str, first: int, last: int) -> str:
        bounds = [self.constant([at], np.int64) for at in (first, last, -1)]
        return self.add("Slice", x, *bounds)

    def call(self, x: str, name: str) -> str:
        """The same value under a name that users see."""
        return self.add("Identity", x, outputs=[name])
