"""Rollouts from one start state, and the tails that a QCPO critic, or a fit to the rollouts, gives for it."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qcrl import tails
from qcrl.algos.quantile_advantage import CostDistribution
from qcrl.envs import make
from qcrl.envs.base import Environment
from qcrl.kinds import Tree
from qcrl.nets.network import Inputs
from qcrl.quantiles import grid
from qcrl.reproduce.results import write_rows
from qcrl.runs.folder import load
from qcrl.runs.jax_policy import JaxPolicy
from qcrl.runs.lane import Lane
from qcrl.sampling.play.device import play_on_device

ROLLOUTS = 10_000
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
    rows: list[list[object]] = []
    curve: list[list[object]] = []
    for run in map(load, runs):
        env = make(run.config["environment"]["id"])
        for lane in run.lanes:
            lane_of = lane.columns.values()
            distribution, costs = roll_out(run.policy_of(lane), env, lane, max(200, round(ROLLOUTS * scale)))
            for kind, each in costs.items():
                fine = np.append(np.arange(0, 99) / 100, 1 - np.geomspace(1e-2, 1 / len(each), 30))
                curve += [[*lane_of, kind, level, np.quantile(each, level)] for level in fine]
                levels = tail_levels(distribution)
                for model, quantiles in models(distribution, each).items():
                    shares = [(level, q, np.mean(each > q), np.mean(each >= q)) for level, q in zip(levels, quantiles)]
                    rows += [[*lane_of, kind, model, *share] for share in shares]
    lane_columns = [*lane.columns, "kind"]
    write_rows(out / "tail.csv", [*lane_columns, "model", "level", "quantile", "above", "reached"], rows)
    write_rows(out / "rollouts.csv", [*lane_columns, "level", "quantile"], curve)


@dataclass(frozen=True, eq=False)
class FromStart:
    """An environment whose episodes all begin in one state, with another future each."""

    env: Environment
    start: Tree
    obs: Array

    def __getattr__(self, name: str) -> object:
        return getattr(self.env, name)

    def reset(self, key: Array) -> tuple[Tree, Array]:
        return with_fresh_future(self.start, key), self.obs


def roll_out(
    policy: JaxPolicy, env: Environment, lane: Lane, rollouts: int
) -> tuple[CostDistribution, dict[str, Float[np.ndarray, " rollouts"]]]:
    """The critic's distribution at the lane's start state, and costs of rollouts from it, discounted and not."""
    # No other episode starts with this key: those of trainings and evaluations come from other words.
    start_key, _ = jax.random.split(jax.random.fold_in(jax.random.key(lane.seed), 3))
    start, obs = jax.jit(env.reset)(start_key)
    critic = jax.jit(partial(policy.algorithm.critic, env))
    inputs = Inputs.first(obs, env.action_size, len(env.costs))
    distribution = jax.device_get(critic(policy.state, inputs, policy.algorithm.initial_memory(env)))
    discount = policy.trained_by.discount  # type: ignore[attr-defined]
    fixed: Environment = FromStart(env, start, obs)  # type: ignore[assignment]
    (totals,) = play_on_device([(policy, [lane.seed, *b"tail"])], fixed, rollouts, discount=discount)
    kind = env.costs.index(lane.constraint.cost)
    assert totals.discounted is not None
    return distribution, dict(zip(KINDS, (totals.discounted[:, kind], totals.costs[:, kind])))


def with_fresh_future(start: Tree, key: Array) -> Tree:
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
