"""Scales that follow the task: rewards and costs are divided by the spread of their discounted sums so far."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from qcrl.constraints import Unit
from qcrl.kinds import Tree
from qcrl.nets.network import Normaliser

LEAST_SHARE = 0.1
"""Where sums hardly differ, this share of their size is what they are divided by."""


class Scale(NamedTuple):
    """Mean and variance of the discounted sums of one signal, along all episodes."""

    sums: Float[Array, " env"]
    """Of the running episodes."""
    seen: Normaliser

    @staticmethod
    def init(num_envs: int) -> "Scale":
        return Scale(jnp.zeros(num_envs), Normaliser.init(1))

    def update(self, signal: Float[Array, "time env"], first: Bool[Array, "time env"], discount: Unit) -> "Scale":
        """With a further batch, in which `first` marks an episode's first step."""

        def add(sums: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
            sums = step[0] + discount * jnp.where(step[1], 0.0, sums)
            return sums, sums

        sums, along = jax.lax.scan(add, self.sums, (signal, first))
        return Scale(sums, self.seen.update(along[..., None]))

    @property
    def unit(self) -> Float[Array, ""]:
        """What the signal is divided by; 1 while nothing but zeros was seen."""
        mean, variance = self.seen.mean[0], self.seen.variance[0]
        size = jnp.sqrt(jnp.maximum(variance, LEAST_SHARE**2 * (variance + mean**2)))
        return jnp.where((self.seen.samples > 0) & (size > 0), size, 1.0)


class Scales(NamedTuple):
    """Those that are not fixed."""

    reward: Tree = ()
    cost: Tree = ()
