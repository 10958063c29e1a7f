"""Host rollouts: the share of sampling time that is spent inside an environment which takes a millisecond a step."""

import argparse
import os
import time
from contextlib import closing
from dataclasses import replace

import gymnasium
import jax
import numpy as np
from gymnasium.spaces import Box

from qcrl.algos import qcpo
from qcrl.bench import count, hardware, print_table
from qcrl.constraints import Outage
from qcrl.envs.host.costs import Info
from qcrl.envs.host.environment import open_host
from qcrl.errors import UserError
from qcrl.kinds import Settings
from qcrl.sampling import compilation_cache
from qcrl.sampling.host import HostSampler
from qcrl.sampling.record import unpack

SECONDS = float(os.environ.get("QCRL_BENCH_STEP", "0.001"))


class Busy(gymnasium.Env):
    """Computes for a fixed time per step. Its cost is how long that took, so that workers report it, too."""

    observation_space = Box(-1.0, 1.0, (24,))
    action_space = Box(-1.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None, options: Settings | None = None) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(24, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        start = time.perf_counter()
        self.steps += 1
        while time.perf_counter() - start < SECONDS:
            pass
        return np.zeros(24, np.float32), 0.0, False, self.steps == 1000, {"cost": time.perf_counter() - start}


def add_options(parser: argparse.ArgumentParser) -> None:
    cores = os.cpu_count() or 1
    parser.add_argument("--workers", type=int, nargs="+", default=[0, cores], help=f"(default: 0 {cores})")
    parser.add_argument("--num-envs", type=count, default=12, help="(default: 12, as in the preset fast)")
    parser.add_argument("--steps", type=count, default=300, help="timed steps of each environment (default: 300)")


def run(args: argparse.Namespace) -> None:
    if min(args.workers) < 0 or min(args.num_envs, args.steps) < 1:
        raise UserError("workers must be from 0 on, num_envs and steps from 1 on")
    compilation_cache.use_cache()
    print(f"{hardware()}; qcpo, preset fast, {args.num_envs} environments that take {1000 * SECONDS:g} ms a step\n")
    rows = []
    for workers in args.workers:
        share, speed = measure(workers, args.num_envs, args.steps)
        rows.append([workers or "none: in this process", f"{100 * share:.0f}%", f"{speed:,.0f}"])
    print_table(["worker processes", "of sampling time inside the environment", "steps/s while sampling"], rows)


def measure(workers: int, num_envs: int, steps: int) -> tuple[float, float]:
    """Share of the time that each process spends inside its environments, in the mean, and steps per second."""
    host = open_host(Busy)
    algorithm = replace(qcpo.fast, num_envs=num_envs, steps_per_env=steps, chunk_length=steps)
    constraint = Outage(1.0, 0.1)
    state = jax.vmap(lambda seed: algorithm.init(host, jax.random.key(seed), [constraint]))(np.zeros(1, np.uint32))
    with closing(host.fleet(num_envs, workers)) as fleet:
        sampler = HostSampler(algorithm, host, fleet, [0])
        actor, _, words, env_steps = sampler.prepare(state)
        policy = jax.device_put(actor, sampler.cpu)
        sampler.collect(policy, np.asarray(words), np.asarray(env_steps))  # compiled by this one
        start = time.perf_counter()
        rows, _ = sampler.collect(policy, np.asarray(words), np.asarray(env_steps))
        seconds = time.perf_counter() - start
    inside = float(unpack(host, rows).cost.sum())  # type: ignore[arg-type]
    return float(inside / seconds / max(1, min(workers, num_envs))), num_envs * steps / seconds
