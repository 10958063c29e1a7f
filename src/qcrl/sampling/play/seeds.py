"""Where episodes come from, which policies play, and what is told of them. Episode n of a seed is always the same."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32

from qcrl.envs.base import Described, Description
from qcrl.errors import UserError
from qcrl.kinds import Tree
from qcrl.sampling.learner import Acts

Seed = int | Sequence[int]
"""Any whole numbers."""
Progress = Callable[[float], None]
"""Told now and then how many more episodes, or parts of one, are done."""


class Played(Protocol):
    """A policy: what acts, on which kind of environment, and with which arrays."""

    @property
    def algorithm(self) -> Acts: ...

    @property
    def env(self) -> Description: ...

    @property
    def state(self) -> Tree: ...


class Totals(NamedTuple):
    """Return and costs of every episode."""

    returns: Float[np.ndarray, " episodes"]
    costs: Float[np.ndarray, "episodes cost"]
    discounted: Float[np.ndarray, "episodes cost"] | None = None
    """Costs that count less the later they come, where a discount was given."""


def joined(parts: Sequence[Totals]) -> Totals:
    """All of their episodes."""
    join = lambda name: np.concatenate([getattr(part, name) for part in parts])
    return Totals(join("returns"), join("costs"), None if parts[0].discounted is None else join("discounted"))


def key_words(seed: Seed) -> UInt32[np.ndarray, "2"]:
    """The words of a random key. The first is odd, and 0 in the keys that trainings start from: never the same."""
    words = np.random.SeedSequence(seed).generate_state(2)
    words[0] |= 1
    return words


def episode_keys(key: Array, number: Array) -> tuple[Array, Array]:
    """For the start of an episode, and for its actions."""
    pair = jax.random.split(jax.random.fold_in(key, number))
    return pair[0], pair[1]


def require_finite(env: Described, finite: Bool[np.ndarray, " episodes"] | np.bool) -> None:
    """Raise where an episode met something that is not a number: its cost would look like that of a safe one."""
    if not np.all(finite):
        raise UserError(
            f"{np.size(finite) - np.sum(finite)} episodes of {env.id} have an observation, action, reward or cost that "
            "is not a finite number; mend the environment, or train the policy again"
        )
