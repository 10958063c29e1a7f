"""The distribution of the cost still to come: how probable it is above each of several levels, from 0 to the limit.

Levels are equally far apart, and a position counts them: at position b the cost to come is above b of their steps with
the probability `at(above, b)`. What an episode costs is never negative, so that below 0 this is certain.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qcrl.algos.advantages import Links

Levels = Float[Array, "*batch level"]


def at(above: Levels, position: Float[Array, "*batch place"], sure: float = 1.0) -> Float[Array, "*batch place"]:
    """The probability at these positions, along lines between the levels; `sure` is what a probability of 1 is."""
    last = above.shape[-1] - 1
    below = jnp.clip(jnp.floor(position), 0, last).astype(jnp.int32)
    share = jnp.clip(position - below, 0.0, 1.0)
    low, high = (jnp.take_along_axis(above, jnp.minimum(each, last), axis=-1) for each in (below, below + 1))
    return jnp.where(position < 0, sure, (1 - share) * low + share * high)


def targets(
    cost: Float[Array, "time env"], later: Float[Array, "time env level"], links: Links, decay: float, sure: float = 1.0
) -> Float[Array, "time env level"]:
    """What a critic of all levels learns: costs that were seen, then, the less the later, what it thought itself.

    With G_t(y) the probability that more than y is to come at step t, G_t(y) = G_(t+1)(y - c_t). `cost` counts in steps
    between levels, `later` is the critic's view of the next step. A decay of 0 looks one step ahead, 1 to the end.
    """
    levels = jnp.arange(later.shape[-1], dtype=jnp.float32)

    def back(after: Levels, step: tuple[Array, Array, Array, Array]) -> tuple[Levels, Levels]:
        cost, thought, terminal, continues = step
        mixed = jnp.where(continues[:, None], (1 - decay) * thought + decay * after, thought)
        now = at(jnp.where(terminal[:, None], 0.0, mixed), levels - cost[:, None], sure)
        return now, now

    steps = cost, later, links.terminal, links.continues.at[-1].set(False)
    return jax.lax.scan(back, later[-1], steps, reverse=True)[1]
