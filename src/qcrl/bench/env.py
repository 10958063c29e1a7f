"""Environment steps per second of the JAX engine and the MuJoCo engine."""

import argparse
import importlib.util
import os
import time
from collections.abc import Callable

import jax
import numpy as np

from qcrl.bench import count, hardware, print_table
from qcrl.envs import make
from qcrl.envs.point.tasks import TASKS
from qcrl.errors import UserError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-envs", type=count, default=1024, help="environments in the JAX batch (default: 1024)")
    parser.add_argument("--steps", type=count, default=500, help="steps per environment and timing (default: 500)")


def run(args: argparse.Namespace) -> None:
    jax.config.update("jax_num_cpu_devices", os.cpu_count())
    if args.num_envs % (os.cpu_count() or 1):
        raise UserError(f"num_envs is {args.num_envs}, but must be a multiple of the {os.cpu_count()} cores")
    print(
        f"{hardware()}; {args.num_envs} environments in the JAX batch, 1 elsewhere; "
        "uniform random actions; the best of 3\n"
    )
    rows = []
    for id in TASKS:
        fast, compile_seconds = jax_speed(id, args.num_envs, args.steps)
        slow = (
            gymnasium_speed(f"qcrl/{id}", args.steps, engine="mujoco") if importlib.util.find_spec("mujoco") else None
        )
        rows.append([id, f"{fast:,.0f}", f"{compile_seconds:.1f}", *_against(fast, slow)])
    print_table(["task", "JAX steps/s", "compiled in s", "MuJoCo steps/s", "JAX / MuJoCo"], rows)


def _against(fast: float, slow: float | None) -> list[str]:
    return ["-", "-"] if slow is None else [f"{slow:,.0f}", f"{fast / slow:,.0f}"]


def jax_speed(id: str, num_envs: int, steps: int) -> tuple[float, float]:
    """Steps per second of the whole batch, observations included, and the seconds that compiling took."""
    env = make(id)
    # One part of the batch per device: a CPU's cores each count as one here.
    devices = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
    parts = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec("batch"))

    @jax.jit
    def rollout(states, key):
        actions = jax.random.uniform(key, (steps, num_envs, env.action_size), minval=-1, maxval=1)

        def advance(states, action):
            states, step = jax.vmap(env.step)(states, action)
            # A checksum of the observations, so that none of them can be optimised away.
            return states, (step.reward, step.cost, step.obs.sum(-1))

        return jax.lax.scan(advance, states, actions)

    states, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), num_envs))
    states = jax.device_put(states, parts)
    key = jax.random.key(1)
    start = time.perf_counter()
    compiled = rollout.lower(states, key).compile()
    compile_seconds = time.perf_counter() - start
    return num_envs * steps / _best_of_3(lambda: jax.block_until_ready(compiled(states, key))), compile_seconds


def gymnasium_speed(id: str, steps: int, **options: object) -> float:
    """Steps per second of one environment behind Gymnasium's API."""
    import gymnasium

    return _stepping_speed(gymnasium.make(id, disable_env_checker=True, **options), steps)  # type: ignore[arg-type]


def _stepping_speed(env, steps: int) -> float:
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, *env.action_space.shape)).astype(np.float32)

    def episode() -> None:
        env.reset(seed=0)
        for action in actions:
            env.step(action)

    return steps / _best_of_3(episode)


def _best_of_3(work: Callable[[], object]) -> float:
    def seconds() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    work()
    return min(seconds() for _ in range(3))
