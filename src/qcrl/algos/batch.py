"""What algorithms on the PPO core make of a block of experience, and in which order gradient steps see it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from qcrl.algos.advantages import Links
from qcrl.kinds import Tree
from qcrl.nets.network import Memory, Seen
from qcrl.sampling.learner import Scalars
from qcrl.sampling.record import Trajectory


class Sampled(NamedTuple):
    """A batch, and what the cost critic thought of it while sampling."""

    trajectory: Trajectory
    now: Tree
    """Its estimates at every step."""
    later: Tree
    """Its estimates a step later."""
    links: Links


class CostSignal(NamedTuple):
    """What the costs of a batch say to the policy and to the cost critic."""

    advantage: Float[Array, "time env"]
    targets: Tree
    statistics: Scalars
    importance: Tree = ()
    """How much each step counts for the policy; the same for all unless given."""


class Batch(NamedTuple):
    """What gradient steps are taken on. Chunks are counted along the second axis of every leaf."""

    memory: Memory
    """Before each chunk; its first axis has length 1."""
    seen: Seen
    first: Bool[Array, "time chunk"]
    action: Float[Array, "time chunk action"]
    log_prob: Float[Array, "time chunk"]
    reward_advantage: Float[Array, "time chunk"]
    cost_advantages: tuple[Float[Array, "time chunk"], ...]
    """One for each constraint, as the targets."""
    value_target: Float[Array, "time chunk"]
    cost_targets: tuple[Tree, ...]
    mask: Tree
    """Which options may be chosen; None where all may."""


def shuffled(key: Array, times: int, count: int) -> Int[Array, "times count"]:
    """So many random orders of the numbers below `count`.

    What is sorted are random words that end in the number itself. Numbers whose words begin alike stay in order, which
    no minibatch notices; and words alone are sorted several times as fast as words with numbers beside them.
    """
    bits = max(1, (count - 1).bit_length())
    words = jax.random.bits(key, (times, count), jnp.uint32) >> bits << bits
    return (jnp.sort(words | jnp.arange(count, dtype=jnp.uint32)) & ((1 << bits) - 1)).astype(jnp.int32)
