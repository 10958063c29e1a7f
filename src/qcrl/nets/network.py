"""The actor-critic network of Appendix E.1: an MLP, an optional LSTM, and all heads as one linear layer.

Images among the observations are looked at by a small CNN before the MLP.

`Network.step` walks one step with a memory, for acting; `Network.sequence` runs whole stretches of trajectories, for
learning. Both give the same numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from qcrl.kinds import Json, Tree
from qcrl.nets import images, lstm
from qcrl.nets.images import Image
from qcrl.nets.lstm import matmul

Params = dict[str, Tree]


PerStep = Float[Array, "*batch"]


class Inputs(NamedTuple):
    """What is known before a step. All but the observation are 0 at the start of an episode."""

    obs: Float[Array, "*batch obs"]
    previous_action: Float[Array, "*batch action"]
    previous_reward: PerStep
    previous_cost: Float[Array, "*batch cost"]
    spent: Float[Array, "*batch cost"]
    """What the episode has cost so far."""
    time: PerStep
    """Steps of the episode so far."""
    asked: Tree = ()
    """Where in their ranges limit and probability of the episode lie; empty where they are the same for all."""

    @staticmethod
    def first(obs: Float[Array, "*batch obs"], action_size: int, costs: int) -> "Inputs":
        """Those of an episode's first step."""
        zeros = lambda *size: jnp.zeros((*jnp.shape(obs)[:-1], *size))
        return Inputs(obs, zeros(action_size), zeros(), zeros(costs), zeros(costs), zeros())

    def after(self, obs: Array, action: Array, reward: Array, cost: Array) -> "Inputs":
        """Those of the next step of the same episode."""
        return Inputs(obs, action, reward, cost, self.spent + cost, self.time + 1, self.asked)


class Memory(NamedTuple):
    """What the network carries from step to step; empty where it does not need it."""

    hidden: Tree
    """The LSTM's output."""
    cell: Tree
    """The LSTM's cell."""
    cost: Tree = ()
    """The last costs, where they are seen late."""


def tanh_layer(x: Float[Array, "*batch i"], kernel: Float[Array, "i o"], bias: Float[Array, " o"]) -> Array:
    """tanh(x kernel + bias). Where the kernel is in a shorter type, so is all that goes through memory."""
    if kernel.dtype == jnp.float32:
        return jnp.tanh(matmul(x, kernel) + bias)
    return _short_layer(x.astype(kernel.dtype), kernel, bias)


# Written out because autodiff would add up the bias' gradient in the short type, too.
@jax.custom_vjp
def _short_layer(x: Array, kernel: Array, bias: Array) -> Array:
    return jnp.tanh(jnp.matmul(x, kernel).astype(jnp.float32) + bias).astype(kernel.dtype)


def _short_forward(x: Array, kernel: Array, bias: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    out = _short_layer(x, kernel, bias)
    return out, (x, kernel, out)


def _short_backward(saved: tuple[Array, Array, Array], d_out: Array) -> tuple[Array, Array, Array]:
    x, kernel, out = saved
    d_raw = d_out.astype(jnp.float32) * (1 - out.astype(jnp.float32) ** 2)
    short = d_raw.astype(kernel.dtype)
    flat = lambda x: x.reshape(-1, x.shape[-1])
    return jnp.matmul(short, kernel.T), jnp.matmul(flat(x).T, flat(short)), jnp.sum(flat(d_raw), axis=0)


_short_layer.defvjp(_short_forward, _short_backward)


class Seen(NamedTuple):
    """What the layers see of a step. It depends on no parameters, so that gradient steps need not compute it anew."""

    features: Float[Array, "*batch input"]
    """The MLP's input."""
    beside: Tree
    """What the LSTM is given beside the MLP's output; empty without an LSTM."""


class Normaliser(NamedTuple):
    """Running mean and variance of the MLP's input."""

    mean: Float[Array, " input"]
    variance: Float[Array, " input"]
    samples: Float[Array, ""]

    @staticmethod
    def init(size: int, pictures: Sequence[Image] = ()) -> "Normaliser":
        variance = jnp.ones(size)
        for image in pictures:
            variance = variance.at[image.start : image.end].set(images.WHITE**2)
        return Normaliser(jnp.zeros(size), variance, jnp.zeros(()))

    def update(self, batch: Float[Array, "*batch input"], pictures: Sequence[Image] = ()) -> "Normaliser":
        """Mean and variance over everything seen so far, this batch included. All pixels of an image share theirs."""
        batch = batch.reshape(-1, batch.shape[-1])
        samples = self.samples + batch.shape[0]
        share = batch.shape[0] / samples
        mean, spread = jnp.mean(batch, axis=0), jnp.var(batch, axis=0)
        for image in pictures:
            pixels = slice(image.start, image.end)
            all_spread = jnp.mean(spread[pixels]) + jnp.var(mean[pixels])
            mean, spread = mean.at[pixels].set(jnp.mean(mean[pixels])), spread.at[pixels].set(all_spread)
        shift = mean - self.mean
        variance = (1 - share) * self.variance + share * (spread + (1 - share) * shift**2)
        return Normaliser(self.mean + share * shift, variance, samples)

    def __call__(self, x: Float[Array, "*batch input"], clip: float) -> Float[Array, "*batch input"]:
        return jnp.clip((x - self.mean) / jnp.sqrt(self.variance + 1e-8), -clip, clip)


@dataclass(frozen=True)
class Network:
    """Shape of the network. Parameters and observation statistics are passed in."""

    hidden_sizes: tuple[int, ...]
    lstm_size: int
    """0 leaves the LSTM out; previous action and reward are then unused."""
    skip: bool
    """Add the MLP's output to the LSTM's."""
    cost_input: Literal["none", "lstm", "observation"]
    """Where the previous costs enter: nowhere, beside previous action and reward, or as further observations."""
    observation_clip: float
    late_cost: bool = False
    """See every cost one step later than `Inputs` has it."""
    costs: int = 1
    """How many costs a step has."""
    separate: bool = False
    """All outputs but the policy's come from an MLP of their own; there is no LSTM then."""
    choices: tuple[int, ...] = ()
    """How many options each choice has, where an action has several parts."""
    images: tuple[Image, ...] = ()
    """Those among the observations."""

    def init(self, key: Array, obs_size: int, action_size: int, outputs: int) -> tuple[Params, Normaliser]:
        """Kernels uniform within 1 / sqrt(fan in), biases 0."""
        width = inputs = obs_size + self.costs * (self.cost_input == "observation")
        layers: list[tuple[str, int, int, float]] = []
        for place, image in enumerate(self.images):
            width += image.features - image.size
            # Wider by the square root of 6, as ReLU layers need it; a square has four blocks.
            own = [(rows, columns, 4 * rows / 6) for rows, columns in image.kernels]
            layers += [(f"cnn_{place}_{index}", *sizes) for index, sizes in enumerate(own)]
        seen = width
        for index, size in enumerate(self.hidden_sizes):
            layers.append((f"mlp_{index}", width, size, width))
            width = size
        if self.lstm_size:
            width += action_size + 1 + self.costs * (self.cost_input == "lstm") + self.lstm_size
            layers.append(("lstm", width, 4 * self.lstm_size, self.lstm_size))
            width = self.lstm_size
        if self.separate:
            sizes = (seen, *self.hidden_sizes)
            layers += [(f"critic_{i}", sizes[i], size, sizes[i]) for i, size in enumerate(self.hidden_sizes)]
            layers.append(("critic_heads", width, outputs - action_size, width))
            outputs = action_size
        layers.append(("heads", width, outputs, width))
        # All kernels from one draw: every call of the generator takes XLA most of a second to compile.
        ends = np.cumsum([rows * columns for _, rows, columns, _ in layers])
        drawn = jnp.split(jax.random.uniform(key, (int(ends[-1]),), minval=-1.0), ends[:-1])
        params = {
            name: {
                "kernel": values.reshape(rows, columns) / fan_in**0.5,
                "bias": jnp.zeros(columns // 4 if name.startswith("cnn_") else columns),
            }
            for values, (name, rows, columns, fan_in) in zip(drawn, layers)
        }
        return params, Normaliser.init(inputs, self.images)

    def initial_memory(self, *batch: int) -> Memory:
        """Nothing remembered yet; nothing at all where there is no LSTM and no late cost."""
        blank = lambda size: jnp.zeros((*batch, size)) if size else ()
        return Memory(blank(self.lstm_size), blank(self.lstm_size), blank(self.costs * self.late_cost))

    def describe(self) -> Json:
        """Its shape, for those who run it without JAX."""
        return {
            "kind": "network",
            "layers": len(self.hidden_sizes),
            "lstm_size": self.lstm_size,
            "skip": self.skip,
            "cost_input": self.cost_input,
            "clip": self.observation_clip if math.isfinite(self.observation_clip) else None,
            "late_cost": self.late_cost,
            "costs": self.costs,
            "images": [image.as_dict() for image in self.images],
        }

    def observed(self, inputs: Inputs) -> Float[Array, "*batch input"]:
        """The MLP's input before normalisation, from what it sees."""
        if self.cost_input != "observation":
            return inputs.obs
        return jnp.concatenate([inputs.obs, inputs.previous_cost], axis=-1)

    def step(
        self, params: Params, normaliser: Normaliser, inputs: Inputs, memory: Memory
    ) -> tuple[Float[Array, "*batch outputs"], Memory]:
        state, cost = lstm.Memory(memory.hidden, memory.cell), inputs.previous_cost
        if self.late_cost:
            inputs = inputs._replace(previous_cost=memory.cost)
        seen = self._see(normaliser, inputs)
        feature = self._mlp(params, seen)
        if self.lstm_size:
            state = lstm.step(params["lstm"], _beside(feature, seen), state)
        return self._heads(params, feature, state.hidden), Memory(*state, cost if self.late_cost else ())

    def sequence(
        self,
        params: Params,
        normaliser: Normaliser,
        inputs: Inputs,
        first: Bool[Array, "time batch"],
        start: Memory,
    ) -> tuple[Float[Array, "time batch outputs"], Memory]:
        """Outputs and memories of every step, with the memory emptied where `first` marks an episode's first step."""
        outputs, states = self.run(params, self.see(normaliser, inputs, first, start), first, start)
        return outputs, Memory(*states, inputs.previous_cost if self.late_cost else ())

    def see(self, normaliser: Normaliser, inputs: Inputs, first: Bool[Array, "time batch"], start: Memory) -> Seen:
        """What the layers see of a sequence."""
        return self._see(normaliser, self.seen(inputs, first, start))

    def run(
        self, params: Params, seen: Seen, first: Bool[Array, "time batch"], start: Memory
    ) -> tuple[Float[Array, "time batch outputs"], lstm.Memory]:
        """Outputs, and the LSTM's memories, of a sequence that is seen."""
        states = lstm.Memory(start.hidden, start.cell)
        feature = self._mlp(params, seen)
        if self.lstm_size:
            states = lstm.sequence(params["lstm"], _beside(feature, seen), first, states)
        return self._heads(params, feature, states.hidden), states

    def seen(self, inputs: Inputs, first: Bool[Array, "time batch"], start: Memory) -> Inputs:
        """What the network sees of a sequence: all of it, but where costs come late, those of the step before."""
        if not self.late_cost:
            return inputs
        late = jnp.concatenate([start.cost[None], inputs.previous_cost[:-1]])
        return inputs._replace(previous_cost=jnp.where(first[..., None], 0.0, late))

    def _see(self, normaliser: Normaliser, inputs: Inputs) -> Seen:
        features = normaliser(self.observed(inputs), self.observation_clip)
        if not self.lstm_size:
            return Seen(features, ())
        beside = [inputs.previous_action, inputs.previous_reward[..., None]]
        if self.cost_input == "lstm":
            beside.append(inputs.previous_cost)
        return Seen(features, jnp.concatenate(beside, axis=-1))

    def _mlp(self, params: Params, seen: Seen) -> Array:
        features = seen.features
        if self.images:
            layer = lambda name: (params[name]["kernel"], params[name]["bias"])
            layers = [[layer(f"cnn_{place}_{index}") for index in range(2)] for place in range(len(self.images))]
            features = images.features(features, self.images, layers, jnp)
        own = self._trunk(params, "mlp", features)
        if "critic_heads" not in params:
            return own
        return jnp.concatenate([own, self._trunk(params, "critic", features)], axis=-1)

    def _trunk(self, params: Params, name: str, x: Array) -> Array:
        for index in range(len(self.hidden_sizes)):
            x = tanh_layer(x, **params[f"{name}_{index}"])
        return x

    def _heads(self, params: Params, feature: Array, hidden: Array) -> Array:
        if self.lstm_size:
            feature = feature + hidden if self.skip else hidden
        apply = lambda name, x: matmul(x, params[name]["kernel"]) + params[name]["bias"]
        if "critic_heads" not in params:
            return apply("heads", feature)
        own, critic = jnp.split(feature, 2, axis=-1)
        return jnp.concatenate([apply("heads", own), apply("critic_heads", critic)], axis=-1)


def _beside(feature: Array, seen: Seen) -> Array:
    """The LSTM's input."""
    return jnp.concatenate([feature, seen.beside.astype(feature.dtype)], axis=-1)


def only_heads(params: Params, count: int) -> Params:
    """The same network with its first `count` outputs only, those of the policy."""
    heads = {"kernel": params["heads"]["kernel"][:, :count], "bias": params["heads"]["bias"][:count]}
    return {name: part for name, part in params.items() if not name.startswith("critic_")} | {"heads": heads}


def cast_kernels(params: Params, dtype: type) -> Params:
    """Kernels in the type in which products shall run; all else stays float32."""
    return jax.tree.map(lambda x: x.astype(dtype) if x.ndim == 2 else x, params)
