"""Advantages and the targets of critics: generalised advantage estimation over a batch of trajectories."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from qcrl.constraints import Unit

Steps = Float[Array, "time env"]


class Links(NamedTuple):
    """How each step of a batch is tied to the one after it."""

    terminal: Bool[Array, "time env"]
    """Nothing follows: the next value is 0."""
    continues: Bool[Array, "time env"]
    """Later steps count towards this one's advantage; false at the end of an episode, or of a chunk if cut there."""


def gae(signal: Steps, value: Steps, next_value: Steps, links: Links, discount: Unit, gae_lambda: float) -> Steps:
    """Sum over later steps of (discount * gae_lambda)^k times the TD error of `signal`.

    Lambda 0 is the TD error itself; with lambda 1, advantage + value is the sampled return.
    """
    total = signal + discount * next_value * ~links.terminal - value
    if gae_lambda == 0:
        return total
    # Doubling: each pass covers twice as many steps. A few wide operations, where a scan is many small ones.
    reach = discount * gae_lambda * links.continues
    covered = 1
    while covered < total.shape[0]:
        total, reach = total + reach * _later(total, covered), reach * _later(reach, covered)
        covered *= 2
    return total


def _later(x: Float[Array, "time env"], steps: int) -> Float[Array, "time env"]:
    return jnp.concatenate([x[steps:], jnp.zeros_like(x[:steps])])
