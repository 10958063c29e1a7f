"""The record of experience: what is kept of every step, in which order, and what follows from it.

Sampling writes rows, on the device and on the host alike; algorithms read trajectories, or keep rows in a replay.
"""

import math
from collections.abc import Callable
from itertools import accumulate
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from qcrl.constraints import Constraint
from qcrl.envs.base import Described
from qcrl.envs.drawing import DRAWN
from qcrl.kinds import Tree
from qcrl.nets.network import Inputs, Memory, PerStep

Ends = Bool[Array, "*batch"]
Flags = Bool[Array, "time env"]
Steps = Float[Array, "time env"]


class Record(NamedTuple):
    """What is kept of a step; in a row its parts lie one behind the other, in this order."""

    obs: Float[Array, "*batch obs"]
    next_obs: Float[Array, "*batch obs"]
    """The observation after the step, at an episode's end the last one, not the first of the next episode."""
    action: Float[Array, "*batch action"]
    reward: PerStep
    cost: Float[Array, "*batch cost"]
    terminated: Ends
    truncated: Ends
    episode_return: PerStep
    """Sum of the episode's rewards, this step's included."""
    episode_cost: Float[Array, "*batch cost"]
    asked: Tree = ()
    """What the episode has drawn, where episodes do."""

    @property
    def ended(self) -> Bool[Array, "*batch"]:
        return self.terminated | self.truncated


SCALARS = ("reward", "terminated", "truncated", "episode_return")


def row_size(env: Described) -> int:
    """Numbers in a row."""
    return sum(_sizes(env))


def pack(record: Record, xp: ModuleType = jnp) -> Float[Array, "*batch row"]:
    """The record as one array: on an accelerator every array that a loop records costs a launch at every step."""
    named = ((name, x) for name, x in zip(record._fields, record) if not isinstance(x, tuple))
    parts = [x[..., None] if name in SCALARS else x for name, x in named]
    return xp.concatenate([part.astype(xp.float32) for part in parts], axis=-1)


def unpack(env: Described, rows: Float[Array, "*batch row"]) -> Record:
    """The record that was packed."""
    ends = [sum(_sizes(env)[: i + 1]) for i in range(len(_sizes(env)) - 1)]
    parts = jnp.split(rows, ends, axis=-1)
    record = Record(*(x[..., 0] if name in SCALARS else x for name, x in zip(Record._fields, parts)))
    return record._replace(terminated=record.terminated > 0, truncated=record.truncated > 0)


def _sizes(env: Described) -> tuple[int, ...]:
    obs, costs = env.observation_size, len(env.costs)
    drawn = (DRAWN,) if getattr(env, "draws", False) else ()
    return obs, obs, env.action_size, 1, costs, 1, 1, 1, costs, *drawn


class Actors(NamedTuple):
    """Everything that lives on between two steps of the parallel environments; carried across iterations."""

    env_state: Tree
    inputs: Inputs
    memory: Memory
    episode_return: Float[Array, " env"]

    @property
    def first(self) -> Bool[Array, " env"]:
        """The coming step is the first of an episode."""
        return self.inputs.time == 0


class Episodes(NamedTuple):
    """Finished episodes in the order of time. Rows whose `finished` is false hold nothing."""

    finished: Bool[Array, " n"]
    env_steps: Int[Array, " n"]
    return_: Float[Array, " n"]
    cost: Float[Array, "n cost"]
    asked: Tree = ()
    """What each has drawn, where episodes do."""


class Experience(NamedTuple):
    """A block of experience, as sampling hands it to an algorithm."""

    rows: Float[Array, "time env row"]
    start: Actors
    """The actors before the first step."""
    episodes: Episodes
    """Those that ended within the block."""
    memory: Memory
    """The memory before the first step of every chunk: [chunk, env, ...]."""


class Trajectory(NamedTuple):
    """A block of experience, read."""

    inputs: Inputs
    first: Flags
    action: Float[Array, "time env action"]
    reward: Steps
    cost: Float[Array, "time env cost"]
    terminated: Flags
    truncated: Flags
    next_obs: Float[Array, "time env obs"]
    episode_cost: Float[Array, "time env cost"]
    """The costs of the episode so far, this step's included: what the next step knows as spent, to the last bit."""
    memory: Memory
    """The memory before the first step of every chunk: [chunk, env, ...]."""

    @property
    def ended(self) -> Flags:
        return self.terminated | self.truncated


def read_trajectory(env: Described, experience: Experience) -> Trajectory:
    """What the rows say, and what follows from them: the previous action, reward and cost of every step."""
    record, start = unpack(env, experience.rows), experience.start
    first = jnp.concatenate([start.first[None], record.ended[:-1]])

    def previous(at_start: Array, x: Array) -> Array:
        shifted = jnp.concatenate([at_start[None], x[:-1]])
        return jnp.where(first.reshape(first.shape + (1,) * (x.ndim - 2)), 0.0, shifted)

    # Steps since the last first one, or since the one before the block.
    steps = jnp.arange(first.shape[0], dtype=jnp.float32)[:, None]
    begun = jax.lax.cummax(jnp.where(first, steps, -start.inputs.time), axis=0)
    inputs = Inputs(
        record.obs,
        previous(start.inputs.previous_action, record.action),
        previous(start.inputs.previous_reward, record.reward),
        previous(start.inputs.previous_cost, record.cost),
        previous(start.inputs.spent, record.episode_cost),
        steps - begun,
        record.asked,
    )
    ends = record.terminated, record.truncated
    step = first, record.action, record.reward, record.cost, *ends, record.next_obs, record.episode_cost
    return Trajectory(inputs, *step, experience.memory)


class Window(NamedTuple):
    """Ring buffer of the most recent episodes."""

    return_: Float[Array, " window"]
    cost: Float[Array, "window cost"]
    seen: Int[Array, ""]
    """Episodes ever added."""
    asked: Tree = ()
    """What each has drawn, where episodes do."""

    @staticmethod
    def init(size: int, costs: int = 1, draws: bool = False) -> "Window":
        asked = jnp.zeros((size, DRAWN)) if draws else ()
        return Window(jnp.zeros(size), jnp.zeros((size, costs)), jnp.zeros((), jnp.int32), asked)

    def add(self, episodes: Episodes) -> "Window":
        size = self.cost.shape[0]
        total = jnp.sum(episodes.finished, dtype=jnp.int32)
        rank = jnp.cumsum(episodes.finished, dtype=jnp.int32) - 1
        kept = episodes.finished & (rank >= total - size)
        slot = jnp.where(kept, (self.seen + rank) % size, size)
        return Window(
            self.return_.at[slot].set(episodes.return_, mode="drop"),
            self.cost.at[slot].set(episodes.cost, mode="drop"),
            self.seen + total,
            jax.tree.map(lambda kept, new: kept.at[slot].set(new, mode="drop"), self.asked, episodes.asked),
        )

    def recent(self, count: Int[Array, ""] | int) -> Bool[Array, " window"]:
        """Which entries are among the last `count` episodes."""
        size = self.cost.shape[0]
        age = (self.seen - 1 - jnp.arange(size)) % size
        return age < jnp.minimum(self.seen, count)


class State(NamedTuple):
    """All that changes during the training of one lane, as arrays."""

    learner: Tree
    """The algorithm's own: parameters, optimiser, multiplier."""
    store: Tree
    """Experience that the algorithm keeps, such as a replay; empty for most. Unlike the rest it is not kept twice, so a
    lane that breaks does not get it back."""
    actors: Actors
    window: Window
    key: Array
    iteration: Int[Array, ""]
    env_steps: Int[Array, ""]
    constraints: tuple[Constraint, ...]
    """What the lane is trained under, with its numbers as arrays."""
    probability: Float[Array, ""]
    """The share of episodes at which outages and quantiles are reported."""
    learning_rate: Float[Array, ""]
    alive: Bool[Array, ""]
    """False once a loss or a parameter was not finite; everything else then stays as it was before."""

    def costs_of(self, env: Described, constraint: Constraint) -> Float[Array, " window"]:
        """Costs of recent episodes, of the kind that the constraint is about."""
        return self.window.cost[:, env.costs.index(constraint.cost)]


class Metrics(NamedTuple):
    """What an iteration reports."""

    scalars: dict[str, Float[Array, ""]]
    episodes: Episodes


def all_finite(tree: Tree) -> Bool[Array, ""]:
    return jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]).all()


def mean_of(values: Float[Array, " n"], counted: Bool[Array, " n"]) -> Float[Array, ""]:
    """The mean of those that count; 0 where none does."""
    return jnp.sum(jnp.where(counted, values, 0.0)) / jnp.maximum(jnp.sum(counted), 1)


def choose(condition: Bool[Array, ""], new: Tree, old: Tree) -> Tree:
    """One of two trees, leaf by leaf."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), new, old)


def side_by_side(tree: Tree) -> tuple[Float[Array, "time chunk column"], Callable[[Array], Tree]]:
    """All leaves as columns of one array, and what gives them back from it or from some of its rows."""
    leaves, structure = jax.tree.flatten(tree)
    kinds = [(leaf.dtype, leaf.shape[2:]) for leaf in leaves]
    ends = list(accumulate(math.prod(shape) for _, shape in kinds))[:-1]

    def restore(table: Array) -> Tree:
        columns = zip(jnp.split(table, ends, axis=-1), kinds)
        shaped = [x.reshape(*x.shape[:2], *shape).astype(dtype) for x, (dtype, shape) in columns]
        return jax.tree.unflatten(structure, shaped)

    columns = [leaf.astype(jnp.float32).reshape(*leaf.shape[:2], -1) for leaf in leaves]
    return jnp.concatenate(columns, axis=-1), restore
