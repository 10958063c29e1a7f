"""Mixtures: several policies of one algorithm, one of which is drawn for every episode."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from qcrl.algos.algorithm import Algorithm
from qcrl.envs.base import Described
from qcrl.kinds import Tree
from qcrl.nets.network import Inputs, Memory

UNDRAWN = -1
"""The part of an episode that has not begun."""


class MixtureState(NamedTuple):
    """What the parts consist of, and how often each is drawn."""

    parts: tuple[Tree, ...]
    weights: Float[Array, " parts"]


class MixtureMemory(NamedTuple):
    """The part that was drawn, and what it remembers."""

    part: Int[Array, ""]
    own: Memory


@dataclass(frozen=True)
class Mixture:
    """Acts as one of its parts does from the first step of an episode to the last."""

    algorithm: Algorithm
    """Of every part."""

    @property
    def needs(self) -> tuple[str, ...]:
        """What it must be told of the step before."""
        return self.algorithm.needs

    def initial_memory(self, env: Described) -> Tree:
        return MixtureMemory(jnp.full((), UNDRAWN, jnp.int32), self.algorithm.initial_memory(env))

    def act(
        self,
        env: Described,
        policy: MixtureState,
        inputs: Inputs,
        memory: Tree,
        key: Array,
        deterministic: bool = False,
    ) -> tuple[Float[Array, "*batch action"], Tree]:
        """The drawn part's action. All parts are asked: to fetch one's weights for every episode takes longer."""
        drawn = jax.random.categorical(jax.random.fold_in(key, 0), jnp.log(policy.weights)).astype(jnp.int32)
        part = jnp.where(memory.part == UNDRAWN, drawn, memory.part)
        acts = [self.algorithm.act(env, each, inputs, memory.own, key, deterministic) for each in policy.parts]
        action, own = _pick(part, acts)
        return action, MixtureMemory(part, own)

    def critic(self, env: Described, policy: MixtureState, inputs: Inputs, memory: Tree) -> Tree:
        """What the drawn part expects of the cost to go."""
        views = [self.algorithm.critic(env, each, inputs, memory.own) for each in policy.parts]
        return _pick(jnp.maximum(memory.part, 0), views)


def _pick(part: Int[Array, ""], trees: Sequence[Tree]) -> Tree:
    return jax.tree.map(lambda *leaves: jax.lax.select_n(part, *leaves), *trees)
