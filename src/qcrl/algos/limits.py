"""One multiplier for every limit and probability: its values at the nodes of a grid over both ranges, linear between.

A node is steered by the recent episodes that were asked for about its limit and probability, each by how near it is.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from qcrl.algos.multiplier import episode_window
from qcrl.constraints import Constraint
from qcrl.nets.network import Inputs
from qcrl.ranges import end, is_range
from qcrl.sampling.record import Window

NODES = 6, 4
"""Over the limit and over the logarithm of the probability, where these are ranges."""


def counts(constraint: Constraint) -> tuple[int, int]:
    """Nodes along both axes."""
    ranged = is_range(constraint.limit), is_range(constraint.share)
    return tuple(count if drawn else 1 for count, drawn in zip(NODES, ranged))  # type: ignore[return-value]


def fewest_episodes(constraint: Constraint, outages: int) -> int:
    """Recent episodes among which a node in a corner finds so many allowed outages."""
    corner = 1.0
    for count in counts(constraint):
        corner /= 2 * (count - 1) if count > 1 else 1
    return episode_window(0, end(constraint.share, 0) * corner, outages)


def asked(constraint: Constraint, inputs: Inputs) -> Constraint:
    """The constraint with what was drawn for each episode; itself where nothing is."""
    return constraint.ask((inputs.asked[..., 0], inputs.asked[..., 1])) if constraint.ranged else constraint


def shares(constraint: Constraint, position: Float[Array, "*batch 2"]) -> Float[Array, "*batch node"]:
    """How much of each node's value counts at this position."""
    rows, columns = (_hats(position[..., axis], count) for axis, count in enumerate(counts(constraint)))
    together = rows[..., :, None] * columns[..., None, :]
    return together.reshape(*together.shape[:-2], -1)


def _hats(x: Float[Array, "*batch"], count: int) -> Float[Array, "*batch node"]:
    if count == 1:
        return jnp.ones((*x.shape, 1))
    return jnp.maximum(0.0, 1 - jnp.abs(x[..., None] * (count - 1) - jnp.arange(count)))


def outage_ratios(
    constraint: Constraint, costs: Float[Array, " window"], window: Window, outages: int, unknown: Float[Array, ""]
) -> Float[Array, " node"]:
    """For each node the outages as a multiple of those allowed, over the most recent episodes that allow so many."""
    size = costs.shape[0]
    latest = (window.seen - 1 - jnp.arange(size)) % size
    position = window.asked[latest]
    now = constraint.ask((position[:, 0], position[:, 1]))
    limit, probability = (jnp.broadcast_to(jnp.asarray(x), (size,)) for x in (now.limit, now.share))
    seen = jnp.arange(size) < window.seen
    near = shares(constraint, position) * seen[:, None]
    allowed = near * probability[:, None]
    counted = jnp.cumsum(allowed, axis=0) - allowed < outages
    total = jnp.sum(allowed * counted, axis=0)
    over = jnp.sum(near * counted * (costs[latest] > limit)[:, None], axis=0)
    return jnp.where(total > 0, over / jnp.maximum(total, 1e-6), unknown)
