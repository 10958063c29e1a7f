"""Rollouts from one start state, and the tails that a QCPO critic, or a fit to the rollouts, gives for it."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qcrl import tails
from qcrl.algos.quantile_advantage import CostDistribution
from qcrl.envs import make
from qcrl.envs.base import Environment
from qcrl.policy import Policy
from qcrl.quantiles import grid
from qcrl.reproduce.results import write_rows
from qcrl.runs import Lane, load

ROLLOUTS = 10_000
AT_ONCE = 500
AFTERWARDS = 2**31
"""Number of the random key behind those of all steps."""
TAIL = 8
"""How many of the highest levels a tail is fitted to and judged at, as in the paper."""
KINDS = ("discounted", "undiscounted")
MODELS = {
    "critic": "critic's quantiles",
    "critic_weibull": "critic's Weibull",
    "critic_gaussian": "Gaussian with the critic's mean and variance",
    "fitted_weibull": "Weibull fitted to the rollouts",
    "fitted_gaussian": "Gaussian fitted to the rollouts",
}


def measure(runs: Iterable[Path], out: Path, scale: float) -> None:
    """Write tail.csv, a row per lane, kind of cost, model and level, and rollouts.csv, the quantiles of the rollouts.

    above, reached: shares of the rollouts whose cost is more than the model's quantile, and at least that.
    """
    rows: list[list[Any]] = []
    curve: list[list[Any]] = []
    for run in map(load, runs):
        env = make(run.config["environment"]["id"])
        for lane in run.lanes:
            distribution, costs = roll_out(
                Policy.load(run.policy_file(lane)), env, lane, max(200, round(ROLLOUTS * scale))
            )
            for kind, each in costs.items():
                fine = np.append(np.arange(0, 99) / 100, 1 - np.geomspace(1e-2, 1 / len(each), 30))
                curve += [[*lane, kind, level, np.quantile(each, level)] for level in fine]
                levels = tail_levels(distribution)
                for model, quantiles in models(distribution, each).items():
                    shares = [(level, q, np.mean(each > q), np.mean(each >= q)) for level, q in zip(levels, quantiles)]
                    rows += [[*lane, kind, model, *share] for share in shares]
    lane_columns = ["seed", "probability", "limit", "kind"]
    write_rows(out / "tail.csv", [*lane_columns, "model", "level", "quantile", "above", "reached"], rows)
    write_rows(out / "rollouts.csv", [*lane_columns, "level", "quantile"], curve)


def roll_out(
    policy: Policy, env: Environment, lane: Lane, rollouts: int
) -> tuple[CostDistribution, dict[str, Float[np.ndarray, " rollouts"]]]:
    """The critic's distribution at the lane's start state, and discounted and undiscounted costs of rollouts from it."""
    # No other episode starts with this key: those of trainings and evaluations come from other words.
    start_key, key = jax.random.split(jax.random.fold_in(jax.random.key(lane.seed), 3))
    start, obs = jax.jit(env.reset)(start_key)
    memory = policy.algorithm.initial_carry(env)
    before = (jnp.zeros(env.action_size), jnp.zeros(()), jnp.zeros(()))
    critic = jax.jit(partial(policy.algorithm.critic, env))
    distribution = jax.device_get(critic(policy.state, memory, obs, *before))
    parts = [
        jax.device_get(_roll(policy.algorithm, env, policy.state, start, obs, keys))
        for keys in jnp.split(jax.random.split(key, rollouts), list(range(AT_ONCE, rollouts, AT_ONCE)))
    ]
    return distribution, {kind: np.concatenate(column) for kind, column in zip(KINDS, zip(*parts))}


@partial(jax.jit, static_argnums=(0, 1))
def _roll(
    algorithm: Any, env: Environment, policy_state: Any, start: Any, obs: Array, keys: Array
) -> tuple[Array, Array]:
    def episode(key: Array) -> tuple[Array, Array]:
        def step(now: Any, time: Array) -> tuple[Any, None]:
            env_state, memory, last, running, discounted, total = now
            action, memory = algorithm.act(env, policy_state, memory, *last, jax.random.fold_in(key, time))
            env_state, out = env.step(env_state, action)
            cost = jnp.where(running, out.cost, 0.0)
            sums = discounted + algorithm.discount**time * cost, total + cost
            running = running & ~(out.terminated | out.truncated)
            return (env_state, memory, (out.obs, action, out.reward, out.cost), running, *sums), None

        zero = jnp.zeros(())
        last = (obs, jnp.zeros(env.action_size), zero, zero)
        begin = (with_fresh_future(start, key), algorithm.initial_carry(env), last, jnp.bool(True), zero, zero)
        return jax.lax.scan(step, begin, jnp.arange(env.horizon))[0][-2:]

    return jax.vmap(episode)(keys)


def with_fresh_future(start: Any, key: Array) -> Any:
    """The same state, but what chance holds in store is drawn anew: its key, or the order of the goals to come."""
    if hasattr(start, "key"):
        return start._replace(key=jax.random.fold_in(key, AFTERWARDS))
    order = jax.random.permutation(jax.random.fold_in(key, AFTERWARDS), len(start.successors.goals))
    take = lambda queue: queue[order] if len(queue) else queue
    return start._replace(successors=jax.tree.map(take, start.successors))


def tail_levels(distribution: CostDistribution) -> np.ndarray:
    return grid(len(distribution.quantiles))[-TAIL:]


def models(
    distribution: CostDistribution, costs: Float[np.ndarray, " rollouts"]
) -> dict[str, Float[np.ndarray, " levels"]]:
    """Quantiles at the tail's levels under every model. A Weibull cannot be fitted where these costs are all 0."""
    levels = jnp.asarray(tail_levels(distribution))
    own = np.sort(distribution.quantiles)
    quantiles = np.quantile(costs, levels)
    positive = quantiles > 0
    found = {
        "critic": own[-TAIL:],
        "critic_weibull": distribution.tail.quantile(levels),
        "critic_gaussian": tails.Gaussian(own.mean(), own.var()).quantile(levels),
        "fitted_gaussian": tails.Gaussian(costs.mean(), costs.var()).quantile(levels),
    }
    if len(set(quantiles[positive].tolist())) > 1:
        found["fitted_weibull"] = tails.fit_weibull(quantiles[positive], levels[positive]).quantile(levels)
    return {name: np.asarray(found[name]) for name in MODELS if name in found}
