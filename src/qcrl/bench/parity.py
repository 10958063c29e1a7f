"""Do the two engines give the same episodes? A random policy and a goal-seeker on every task, compared by bootstrap."""

import argparse
import csv
import multiprocessing
import os
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from qcrl.bench import count, hardware, print_row, print_table
from qcrl.envs import make
from qcrl.envs.point.scripted import seek_goal
from qcrl.envs.point.tasks import TASKS

POLICIES = ("random", "seeker")
LEVEL = 0.999
STATISTICS = {
    "mean cost": lambda episodes: episodes[..., 1].mean(-1),
    "90% quantile of cost": lambda episodes: np.quantile(episodes[..., 1], 0.9, axis=-1),
    "mean return": lambda episodes: episodes[..., 0].mean(-1),
}
"""Functions of episodes (..., n, 2), each (return, cost)."""


class Comparison(NamedTuple):
    """One statistic on both engines, and the interval for its difference JAX - MuJoCo."""

    statistic: str
    jax: float
    mujoco: float
    low: float
    high: float

    @property
    def agrees(self) -> bool:
        return self.low <= 0 <= self.high


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--episodes", type=count, default=500, help="episodes per task, policy and engine (default: 500)"
    )
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), help="(default: all)")
    parser.add_argument("--seed", type=int, default=20261115, help="seed of both engines (default: 20261115)")
    parser.add_argument("--out", help="also write the table to this CSV file")


def run(args: argparse.Namespace) -> int:
    print(f"{hardware()}; {args.episodes} episodes per engine, seed {args.seed}; {LEVEL:.1%} bootstrap intervals\n")
    start = time.perf_counter()
    header = ["task", "policy", "statistic", "JAX", "MuJoCo", "difference", "agrees"]
    rows = []
    print_table(header, [])
    for id in args.tasks:
        for policy in POLICIES:
            ours = jax_episodes(id, policy, args.episodes, args.seed)
            theirs = mujoco_episodes(id, policy, args.episodes, args.seed, os.cpu_count() or 1)
            for c in compare(ours, theirs, args.seed):
                interval = f"{c.low:+.3f} to {c.high:+.3f}"
                verdict = "yes" if c.agrees else "NO"
                rows.append([id, policy, c.statistic, f"{c.jax:.3f}", f"{c.mujoco:.3f}", interval, verdict])
                print_row(rows[-1])
    if args.out:
        with open(args.out, "w", newline="") as file:
            csv.writer(file).writerows([header, *rows])
    disagreements = sum(row[-1] == "NO" for row in rows)
    print(f"\n{len(rows) - disagreements} of {len(rows)} agree; {time.perf_counter() - start:.0f} s")
    return int(disagreements > 0)


def compare(ours: Float[np.ndarray, "n 2"], theirs: Float[np.ndarray, "n 2"], seed: int) -> list[Comparison]:
    """Every statistic on both sets of episodes, with the bootstrap interval of the difference."""
    rng = np.random.default_rng(seed)
    resampled = [episodes[rng.integers(len(episodes), size=(10_000, len(episodes)))] for episodes in (ours, theirs)]
    comparisons = []
    for name, statistic in STATISTICS.items():
        difference = statistic(resampled[0]) - statistic(resampled[1])
        low, high = np.quantile(difference, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        comparisons.append(Comparison(name, float(statistic(ours)), float(statistic(theirs)), float(low), float(high)))
    return comparisons


def jax_episodes(id: str, policy: str, episodes: int, seed: int) -> Float[np.ndarray, "n 2"]:
    """Return and cost of whole episodes on the JAX engine, all at once."""
    env = make(id)

    @jax.jit
    def play(key):
        reset_key, action_key = jax.random.split(key)
        states, obs = jax.vmap(env.reset)(jax.random.split(reset_key, episodes))

        def advance(carry, key):
            states, obs, total = carry
            if policy == "random":
                actions = jax.random.uniform(key, (episodes, 2), minval=-1, maxval=1)
            else:
                actions = jax.vmap(lambda obs: seek_goal(obs, TASKS[id], jnp))(obs)
            states, step = jax.vmap(env.step)(states, actions)
            return (states, step.obs, total + jnp.stack([step.reward, step.cost], axis=1)), None

        start = (states, obs, jnp.zeros((episodes, 2)))
        (_, _, total), _ = jax.lax.scan(advance, start, jax.random.split(action_key, env.horizon))
        return total

    return np.asarray(play(jax.random.key(seed)), float)


def mujoco_episodes(id: str, policy: str, episodes: int, seed: int, processes: int) -> Float[np.ndarray, "n 2"]:
    """The same on the MuJoCo engine, over several processes. Every episode has its own random stream."""
    work = [(id, policy, [seed, number]) for number in range(episodes)]
    if processes == 1:
        return np.array([_mujoco_episode(*item) for item in work])
    # A fresh interpreter per worker: forking after JAX has started can deadlock.
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        return np.array(pool.starmap(_mujoco_episode, work, chunksize=8))


def _mujoco_episode(id: str, policy: str, seed: list[int]) -> tuple[float, float]:
    from qcrl.envs.point.mujoco_engine import MujocoEngine

    rng = np.random.default_rng(seed)
    engine = MujocoEngine(TASKS[id])
    obs = engine.reset(rng)
    total_reward = total_cost = 0.0
    for _ in range(engine.task.horizon):
        action = rng.uniform(-1, 1, 2) if policy == "random" else seek_goal(obs, engine.task, np)
        outcome = engine.step(action)
        obs, total_reward, total_cost = outcome.obs, total_reward + outcome.reward, total_cost + outcome.cost
    return total_reward, total_cost
