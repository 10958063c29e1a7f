"""The actor-critic network of Appendix E.1: an MLP, an optional LSTM, and all heads as one linear layer.

`Network.step` walks one step with a memory, for acting; `Network.sequence` runs whole stretches of trajectories, for
learning. Both give the same numbers.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from qcrl.kinds import Tree
from qcrl.nets import lstm
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

    @staticmethod
    def first(obs: Float[Array, "*batch obs"], action_size: int, costs: int) -> "Inputs":
        """Those of an episode's first step."""
        zeros = lambda *size: jnp.zeros((*jnp.shape(obs)[:-1], *size))
        return Inputs(obs, zeros(action_size), zeros(), zeros(costs), zeros(costs), zeros())

    def after(self, obs: Array, action: Array, reward: Array, cost: Array) -> "Inputs":
        """Those of the next step of the same episode."""
        return Inputs(obs, action, reward, cost, self.spent + cost, self.time + 1)


class Memory(NamedTuple):
    """What the network carries from step to step; empty where it does not need it."""

    hidden: Tree
    """The LSTM's output."""
    cell: Tree
    """The LSTM's cell."""
    cost: Tree = ()
    """The last costs, where they are seen late."""


class Normaliser(NamedTuple):
    """Running mean and variance of the MLP's input."""

    mean: Float[Array, " input"]
    variance: Float[Array, " input"]
    samples: Float[Array, ""]

    @staticmethod
    def init(size: int) -> "Normaliser":
        return Normaliser(jnp.zeros(size), jnp.ones(size), jnp.zeros(()))

    def update(self, batch: Float[Array, "*batch input"]) -> "Normaliser":
        """Mean and variance over everything seen so far, this batch included."""
        batch = batch.reshape(-1, batch.shape[-1])
        samples = self.samples + batch.shape[0]
        share = batch.shape[0] / samples
        shift = jnp.mean(batch, axis=0) - self.mean
        variance = (1 - share) * self.variance + share * (jnp.var(batch, axis=0) + (1 - share) * shift**2)
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

    def init(self, key: Array, obs_size: int, action_size: int, outputs: int) -> tuple[Params, Normaliser]:
        """Kernels uniform within 1 / sqrt(fan in), biases 0."""
        width = inputs = obs_size + self.costs * (self.cost_input == "observation")
        layers: list[tuple[str, int, int, int]] = []
        for index, size in enumerate(self.hidden_sizes):
            layers.append((f"mlp_{index}", width, size, width))
            width = size
        if self.lstm_size:
            width += action_size + 1 + self.costs * (self.cost_input == "lstm") + self.lstm_size
            layers.append(("lstm", width, 4 * self.lstm_size, self.lstm_size))
            width = self.lstm_size
        layers.append(("heads", width, outputs, width))
        # All kernels from one draw: every call of the generator takes XLA most of a second to compile.
        ends = np.cumsum([rows * columns for _, rows, columns, _ in layers])
        drawn = jnp.split(jax.random.uniform(key, (int(ends[-1]),), minval=-1.0), ends[:-1])
        params = {
            name: {"kernel": values.reshape(rows, columns) / fan_in**0.5, "bias": jnp.zeros(columns)}
            for values, (name, rows, columns, fan_in) in zip(drawn, layers)
        }
        return params, Normaliser.init(inputs)

    def initial_memory(self, *batch: int) -> Memory:
        """Nothing remembered yet; nothing at all where there is no LSTM and no late cost."""
        blank = lambda size: jnp.zeros((*batch, size)) if size else ()
        return Memory(blank(self.lstm_size), blank(self.lstm_size), blank(self.costs * self.late_cost))

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
        feature = self._mlp(params, normaliser, inputs)
        if self.lstm_size:
            state = lstm.step(params["lstm"], self._lstm_input(feature, inputs), state)
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
        states, costs = lstm.Memory(start.hidden, start.cell), inputs.previous_cost
        inputs = self.seen(inputs, first, start)
        feature = self._mlp(params, normaliser, inputs)
        if self.lstm_size:
            states = lstm.sequence(params["lstm"], self._lstm_input(feature, inputs), first, states)
        return self._heads(params, feature, states.hidden), Memory(*states, costs if self.late_cost else ())

    def seen(self, inputs: Inputs, first: Bool[Array, "time batch"], start: Memory) -> Inputs:
        """What the network sees of a sequence: all of it, but where costs come late, those of the step before."""
        if not self.late_cost:
            return inputs
        late = jnp.concatenate([start.cost[None], inputs.previous_cost[:-1]])
        return inputs._replace(previous_cost=jnp.where(first[..., None], 0.0, late))

    def _mlp(self, params: Params, normaliser: Normaliser, inputs: Inputs) -> Array:
        x = normaliser(self.observed(inputs), self.observation_clip)
        for index in range(len(self.hidden_sizes)):
            x = jnp.tanh(matmul(x, params[f"mlp_{index}"]["kernel"]) + params[f"mlp_{index}"]["bias"])
        return x

    def _lstm_input(self, feature: Array, inputs: Inputs) -> Array:
        extras = [inputs.previous_action, inputs.previous_reward[..., None]]
        if self.cost_input == "lstm":
            extras.append(inputs.previous_cost)
        return jnp.concatenate([feature, *extras], axis=-1)

    def _heads(self, params: Params, feature: Array, hidden: Array) -> Array:
        if self.lstm_size:
            feature = feature + hidden if self.skip else hidden
        return matmul(feature, params["heads"]["kernel"]) + params["heads"]["bias"]


def only_heads(params: Params, count: int) -> Params:
    """The same network with its first `count` outputs only."""
    heads = {"kernel": params["heads"]["kernel"][:, :count], "bias": params["heads"]["bias"][:count]}
    return {**params, "heads": heads}


def cast_kernels(params: Params, dtype: type) -> Params:
    """Kernels in the type in which products shall run; all else stays float32."""
    return jax.tree.map(lambda x: x.astype(dtype) if x.ndim == 2 else x, params)
