"""How trained policies act, in NumPy alone: the forward passes of qcrl's networks, read from what a file says of them.

`Algorithm.forward` writes the description. Action vectors have the numbers first, then a one-hot group per choice.
"""

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from qcrl.errors import UserError
from qcrl.kinds import Json
from qcrl.nets.images import Image, features

Array = NDArray[np.float32]
Arrays = dict[str, np.ndarray]
Memory = tuple[Array, ...]
FORBIDDEN = -1e8
"""The logit of an option that is masked."""
LOG_STD_RANGE = -20.0, 2.0
"""Of squashed Gaussians."""


class Known(NamedTuple):
    """What is known before a step."""

    obs: Array
    action: Array
    """The last one."""
    reward: Any
    cost: Array
    spent: Array
    time: Any
    """One number, as the reward, or one for each row of a batch."""
    asked: Any = ()
    """Where in their ranges limit and probability lie, where the policy serves many."""


class Head(NamedTuple):
    """What a network says about the next action."""

    mean: Array
    """Of the numbers."""
    logits: Array
    """Of all choices, group by group."""
    std: Array


class Forward(Protocol):
    """A policy's network."""

    squashed: bool
    """Numbers are squashed into (-1, 1) after they are drawn."""
    choices: tuple[int, ...]
    """How many options each choice has."""

    def blank(self, *batch: int) -> Memory:
        """What is remembered before an episode."""
        ...

    def __call__(self, known: Known, memory: Memory) -> tuple[Head, Memory]: ...


def build(description: Json, arrays: Arrays, action_size: int) -> Forward:
    """The network that a file describes."""
    kinds: dict[str, type[NetworkForward] | type[SoftForward]] = {"network": NetworkForward, "soft": SoftForward}
    kind = kinds.get(description["kind"])
    if kind is None:
        raise UserError(f"there is no forward pass {description['kind']!r} in this version of qcrl; update it")
    return kind(description, arrays, action_size)


class Left(NamedTuple):
    """One number that a policy sees beside the observation: what is left of a budget or of the time, or asked for."""

    kind: str
    """budget, time or asked."""
    which: int
    """The cost that the budget is for, or the axis that is asked for."""
    limit: tuple[float, float] = (0.0, 0.0)
    """Lowest and highest; of time the longest."""
    unit: float | None = None
    """What is left counts in multiples of this, or where it is none, of the limit, which counts as `least` at least."""
    least: float = 0.0
    part: float = 1.0
    """The last part of a unit, as a share of it, beyond which nothing more is seen."""
    bounds: tuple[float, float] = (-math.inf, math.inf)
    over: float | None = None
    """What is seen of a budget that is overdrawn, where that does not depend on by how much."""

    @property
    def unspent(self) -> float:
        """What is seen of a full budget of 0 until something is spent, where an overdrawn one is seen apart."""
        return min(1 / self.part, self.bounds[1])

    def __call__(self, known: Known) -> Any:
        if self.kind == "time":
            return 1 - known.time / self.limit[1]
        if self.kind == "asked":
            return 2 * known.asked[..., self.which] - 1
        limit: Any = self.limit[0]
        highest = self.limit[1]
        if limit == highest and known.spent.ndim == 1 and self.unit:  # quickest in Python's own numbers
            spent = known.spent.item(self.which)
            left = (limit - spent) / self.unit / self.part
            if self.over is not None and limit <= 0 and spent <= 0:
                return self.unspent
            if left < 0 and self.over is not None:
                return self.over
            return min(max(left, self.bounds[0]), self.bounds[1])
        if limit < highest:
            limit = limit + known.asked[..., 0] * (highest - limit)
        unit = self.unit or np.where((whole := np.maximum(limit, self.least)) > 0, whole, 1.0)
        share = (limit - known.spent[..., self.which]) / unit / self.part
        seen = np.clip(share, *self.bounds)
        if self.over is None:
            return seen
        unspent = (np.asarray(highest if self.unit else limit) <= 0) & (known.spent[..., self.which] <= 0)
        return np.where(unspent, self.unspent, np.where(share < 0, self.over, seen))


class NetworkForward:
    """MLP, LSTM and heads, as `nets.network.Network` has them."""

    squashed = False

    def __init__(self, about: Json, arrays: Arrays, action_size: int) -> None:
        params = lambda name: (arrays[f"params/{name}/kernel"], arrays[f"params/{name}/bias"])
        self.about = about
        self.choices = tuple(about["choices"])
        self.numbers = action_size - sum(self.choices)
        self.masks: int = about.get("masks", 0)
        self.images = tuple(map(Image.from_dict, about["images"]))
        self.pictures = [[params(f"cnn_{i}_{index}") for index in range(2)] for i in range(len(self.images))]
        self.layers = [params(f"mlp_{index}") for index in range(about["layers"])]
        kernel, bias = params("heads")
        self.heads = np.ascontiguousarray(kernel[:, :action_size]), bias[:action_size].copy()
        self.mean = arrays["normaliser/mean"]
        self.inverse = (1 / np.sqrt(arrays["normaliser/variance"] + np.float32(1e-8))).astype(np.float32)
        self.lstm_size: int = about["lstm_size"]
        self.lstm = params("lstm") if self.lstm_size else None
        self.std = np.exp(arrays["params/log_std"]) if self.numbers else np.zeros(0, np.float32)
        self.late_costs: int = about["costs"] if about["late_cost"] else 0
        self.clip = np.float32(np.inf if about["clip"] is None else about["clip"])
        self.bounds = np.full_like(self.mean, -self.clip), np.full_like(self.mean, self.clip)
        self.left = [Left(**each) for each in about["left"]]

    def blank(self, *batch: int) -> Memory:
        sizes = [self.lstm_size] * 2 * (self.lstm_size > 0) + [self.late_costs] * (self.late_costs > 0)
        return tuple(np.zeros((*batch, size), np.float32) for size in sizes)

    def __call__(self, known: Known, memory: Memory) -> tuple[Head, Memory]:
        cost = memory[-1] if self.late_costs else known.cost
        # In place, and by methods: a call is mostly the overhead of its operations.
        x = self._seen(known, cost)
        x -= self.mean
        x *= self.inverse
        np.maximum(x, self.bounds[0], out=x)
        np.minimum(x, self.bounds[1], out=x)
        if self.images:
            x = features(x, self.images, self.pictures, np)
        for kernel, bias in self.layers:
            x = x.dot(kernel)
            x += bias
            np.tanh(x, out=x)
        after: Memory = ()
        if self.lstm is not None:
            parts = [x, known.action, np.asarray(known.reward, np.float32)[..., None]]
            if self.about["cost_input"] == "lstm":
                parts.append(cost)
            after = self._remember(np.concatenate([*parts, memory[0]], axis=-1), memory[1])
            x = x + after[0] if self.about["skip"] else after[0]
        if self.late_costs:
            after = (*after, known.cost)
        out = x.dot(self.heads[0])
        out += self.heads[1]
        if self.masks:
            mask = known.obs[..., -self.masks :]
            out[..., self.numbers :] = np.where(mask > 0, out[..., self.numbers :], FORBIDDEN)
        mean = out[..., : self.numbers] if self.choices else out
        logits = out[..., self.numbers :] if self.choices else out[..., :0]
        return Head(np.tanh(mean) if self.about["tanh_mean"] else mean, logits, self.std), after

    def _seen(self, known: Known, cost: Array) -> Array:
        """The observation, what is left and asked for, where that is seen, and the cost, likewise."""
        size = known.obs.shape[-1]
        x = np.empty((*known.obs.shape[:-1], self.mean.size), np.float32)
        columns = x if x.ndim == 1 else x.T  # without an ellipsis, which takes as long as a column
        columns[:size] = known.obs.T
        for left in self.left:
            columns[size] = left(known)
            size += 1
        if self.about["cost_input"] == "observation":
            columns[size:] = cost.T
        return x

    def _remember(self, x: Array, cell: Array) -> Memory:
        assert self.lstm is not None
        new, forget, value, out = np.split(x @ self.lstm[0] + self.lstm[1], 4, axis=-1)
        cell = sigmoid(forget) * cell + sigmoid(new) * np.tanh(value)
        return sigmoid(out) * np.tanh(cell), cell


class SoftForward:
    """The squashed Gaussian of SAC, as `nets.soft` has it."""

    squashed = True
    choices: tuple[int, ...] = ()

    def __init__(self, about: Json, arrays: Arrays, action_size: int) -> None:
        # One copy of each layer; the first kernel has that axis in the middle.
        kernels = [arrays[f"policy/{index}/kernel"] for index in range(about["layers"])]
        kernels = [np.ascontiguousarray(kernel[:, 0] if not i else kernel[0]) for i, kernel in enumerate(kernels)]
        self.layers = [(kernel, arrays[f"policy/{index}/bias"][0]) for index, kernel in enumerate(kernels)]
        self.size = action_size

    def blank(self, *batch: int) -> Memory:
        return ()

    def __call__(self, known: Known, memory: Memory) -> tuple[Head, Memory]:
        x = known.obs
        for index, (kernel, bias) in enumerate(self.layers):
            x = (np.maximum(x, 0) if index else x) @ kernel + bias
        std = np.exp(np.minimum(np.maximum(x[..., self.size :], LOG_STD_RANGE[0]), LOG_STD_RANGE[1]))
        return Head(x[..., : self.size], x[..., :0], std), memory


def sigmoid(x: Array) -> Array:
    """Without overflow."""
    return np.float32(0.5) * (np.tanh(np.float32(0.5) * x) + np.float32(1))


def draw(forward: Forward, head: Head, rng: np.random.Generator, deterministic: bool) -> Array:
    """An action, or the most likely one."""
    numbers = head.mean
    if numbers.shape[-1]:
        if not deterministic:
            numbers = numbers + head.std * rng.standard_normal(numbers.shape, np.float32)
        if forward.squashed:
            numbers = np.tanh(numbers)
    if not forward.choices:
        return numbers
    # The largest sum of Gumbel noise and logits is a sample.
    logits = head.logits if deterministic else head.logits - np.log(rng.standard_exponential(head.logits.shape))
    return np.concatenate([numbers, *one_hots(logits, forward.choices)], axis=-1, dtype=np.float32)


def one_hots(logits: Array, choices: tuple[int, ...]) -> list[Array]:
    """The largest of each group."""
    ends = np.cumsum(choices)
    groups = [logits[..., end - size : end] for size, end in zip(choices, ends)]
    return [np.eye(group.shape[-1], dtype=np.float32)[np.argmax(group, axis=-1)] for group in groups]
