"""Quantiles of the episode cost: the critic's grid, any level read off it, and the loss that trains it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from qcrl.tails import scale_to_level


def grid(count: int) -> np.ndarray:
    """The levels u_i = (2i - 1) / (2 count) at which the critic estimates quantiles."""
    return (np.arange(count, dtype=np.float32) + np.float32(0.5)) / np.float32(count)


def ascending(quantiles: Float[Array, "*batch grid"]) -> Float[Array, "*batch grid"]:
    """Sorted along the grid by a transposition network: ten times as fast as XLA's sort of many short rows on a CPU."""
    count = quantiles.shape[-1]

    def exchange(rows: Array, first: int) -> Array:
        last = first + (count - first) // 2 * 2
        left, right = rows[first:last:2], rows[first + 1 : last : 2]
        swapped = jnp.stack([jnp.minimum(left, right), jnp.maximum(left, right)], axis=1)
        return jnp.concatenate([rows[:first], swapped.reshape(-1, *rows.shape[1:]), rows[last:]])

    rows = jnp.moveaxis(quantiles, -1, 0)
    rows = jax.lax.fori_loop(0, (count + 1) // 2, lambda _, rows: exchange(exchange(rows, 0), 1), rows)
    return jnp.moveaxis(rows, 0, -1)


def at_level(
    quantiles: Float[Array, "*batch grid"],
    level: Float[Array, ""] | float,
    tail_shape: Float[Array, "*batch"],
) -> Float[Array, "*batch"]:
    """The quantile at any `level`, from ascending `quantiles` on the grid.

    Linear between grid levels; the first quantile below the grid; above it, the Weibull tail of shape `tail_shape`,
    scaled to meet the last quantile.
    """
    count = quantiles.shape[-1]
    level = jnp.asarray(level, quantiles.dtype)
    position = jnp.clip(level * count - 0.5, 0.0, count - 1.0)
    hat = jnp.maximum(0.0, 1.0 - jnp.abs(jnp.arange(count) - position))
    # Not a dot product: those may run in reduced precision on an accelerator.
    inside = jnp.sum(quantiles * hat, axis=-1)
    last = float(grid(count)[-1])
    return inside * scale_to_level(last, jnp.maximum(level, last), tail_shape)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def quantile_huber_loss(
    quantiles: Float[Array, "*batch grid"], targets: Float[Array, "*batch samples"], kappa: float
) -> Float[Array, "*batch"]:
    """l_Huber,u, equation (29), averaged over all pairs of a grid level and a target sample.

    With kappa 0 it is the quantile loss itself, (28). The larger kappa is against the spread of the targets, the closer
    the minimisers come to expectiles (docs/kappa.md). Targets count as constants.
    """
    return _loss_and_slope(quantiles, targets, kappa)[0]


def _loss_and_slope(quantiles: Array, targets: Array, kappa: float) -> tuple[Array, Array]:
    """The loss and minus its derivative. Written so that XLA vectorises it on a CPU: a sum over samples, not a mean."""
    levels = grid(quantiles.shape[-1])
    loss, slope = jnp.zeros_like(quantiles), jnp.zeros_like(quantiles)
    for sample in range(targets.shape[-1]):
        error = targets[..., sample, None] - quantiles
        weight = jnp.where(error < 0, 1 - levels, levels)
        if kappa > 0:
            inner = jnp.clip(error, -kappa, kappa)
            loss, slope = loss + weight * inner * (error - 0.5 * inner), slope + weight * inner
        else:
            loss, slope = loss + weight * jnp.abs(error), slope + weight * jnp.sign(error)
    share = 1 / (targets.shape[-1] * levels.size * (kappa or 1))
    # A product keeps the sum over levels out of the loop above.
    return jnp.matmul(loss, jnp.full(levels.size, share), precision="highest"), slope * share


def _backward(kappa: float, slope: Array, cotangent: Array) -> tuple[Array, None]:
    return -slope * cotangent[..., None], None


quantile_huber_loss.defvjp(_loss_and_slope, _backward)


def empirical_quantile(
    costs: Float[Array, " window"], valid: Bool[Array, " window"], level: Float[Array, ""]
) -> Float[Array, ""]:
    """Element floor(n * level), counted from 0, of the n valid costs in ascending order; NaN if there is none.

    This is the statistic that drives the multiplier (Appendix E.4).
    """
    count = jnp.sum(valid)
    # The small addition keeps 100 * (1 - 0.1) in float32 from falling below 90.
    index = jnp.clip(jnp.floor(count * level + 1e-3).astype(jnp.int32), 0, jnp.maximum(count - 1, 0))
    in_order = jnp.sort(jnp.where(valid, costs, jnp.inf))
    return jnp.where(count > 0, jax.lax.dynamic_index_in_dim(in_order, index, keepdims=False), jnp.nan)
