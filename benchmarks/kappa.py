"""What the quantile Huber loss estimates instead of quantiles: the numbers of docs/kappa.md.

Prints, for an exponential cost to go, by how many per cent the minimiser of the loss lies off the quantile.
"""

import jax
import jax.numpy as jnp
import numpy as np

from qcrl.quantiles import grid, quantile_huber_loss

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.98)
MEAN_COST, COST_SCALE = 8.0, 10.0


def minimiser(kappa: float, mean: float, samples: int = 20_000) -> np.ndarray:
    """Where the loss has slope 0 at each level of the grid, for an exponential law of this mean, by bisection."""
    levels = (np.arange(samples) + 0.5) / samples
    targets = jnp.asarray((-mean * np.log1p(-levels)).reshape(25, -1).T, jnp.float32)
    slope = jax.jit(jax.grad(lambda q: quantile_huber_loss(jnp.broadcast_to(q, targets.shape), targets, kappa).sum()))
    low, high = jnp.zeros(25), jnp.full(25, 10 * mean)
    for _ in range(40):
        middle = (low + high) / 2
        rising = slope(middle) > 0
        low, high = jnp.where(rising, low, middle), jnp.where(rising, middle, high)
    return np.asarray((low + high) / 2)


if __name__ == "__main__":
    scaled_mean = MEAN_COST / COST_SCALE
    exact = -scaled_mean * np.log1p(-grid(25))
    shown = [round(level * 25 - 0.5) for level in LEVELS]
    print("| kappa | " + " | ".join(f"level {level}" for level in LEVELS) + " |")
    print("|---|" + "---|" * len(LEVELS))
    for kappa in (0.0, 0.01, 0.05, 0.1, 0.3, 1.0):
        error = 100 * (minimiser(kappa, scaled_mean) / exact - 1)
        print(f"| {kappa} | " + " | ".join(f"{error[i]:+.1f}%" for i in shown) + " |")
