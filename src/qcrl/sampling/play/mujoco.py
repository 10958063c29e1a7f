"""Whole, fresh episodes in MuJoCo, over several processes."""

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from qcrl.envs.base import Described, Description
from qcrl.envs.point.tasks import Task
from qcrl.errors import UserError
from qcrl.kinds import Tree
from qcrl.nets.network import Inputs, Memory
from qcrl.sampling.learner import Acts
from qcrl.sampling.play.seeds import Played, Progress, Seed, Totals, episode_keys, key_words, require_finite

AT_ONCE = 32
"""Simulations that one process steps in turn, so that the policy is asked once for all of them."""


class Batch(NamedTuple):
    """What one process needs to run some of the episodes."""

    algorithm: Acts
    env: Description
    state: Tree
    task: Task
    words: UInt32[np.ndarray, "2"]
    first: int
    size: int
    deterministic: bool


def play_in_mujoco(
    jobs: Sequence[tuple[Played, Seed]],
    env: Described,
    episodes: int,
    deterministic: bool,
    progress: Progress,
    processes: int | None,
    first: int,
) -> list[Totals]:
    """Exactly `episodes` of every policy, from number `first` on; how many processes there are changes no result."""
    task = getattr(env, "task", None)
    if task is None:
        raise UserError(f"{env.id} has no MuJoCo model; use the engine jax")
    starts = range(0, episodes, AT_ONCE)
    totals = [Totals(np.empty(episodes), np.empty((episodes, len(env.costs)))) for _ in jobs]
    with _workers(min(processes or _cores(), len(jobs) * len(starts))) as pool:
        places = {}
        for job, (policy, seed) in enumerate(jobs):
            state = jax.device_get(policy.state)
            for start in starts:
                count, number = min(AT_ONCE, episodes - start), first + start
                batch = Batch(policy.algorithm, policy.env, state, task, key_words(seed), number, count, deterministic)
                places[pool.submit(_run_batch, batch)] = (job, slice(start, start + count))
        for future in as_completed(places):
            job, place = places[future]
            totals[job].returns[place], totals[job].costs[place], _ = future.result()
            progress(place.stop - place.start)
    return totals


@contextmanager
def _workers(count: int) -> Iterator[ProcessPoolExecutor]:
    # Fresh interpreters: forking after JAX has started can deadlock.
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_set_up_worker)
    try:
        yield pool
    except BrokenProcessPool as error:
        raise UserError(
            "a MuJoCo process ended early; in a script, call this from under `if __name__ == '__main__':`, "
            "and check that there is enough memory"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _set_up_worker() -> None:
    """One thread each, and no hold on an accelerator. Ctrl-C ends a worker without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    jax.config.update("jax_platforms", "cpu")


def _run_batch(batch: Batch) -> Totals:
    """Some episodes in step with each other, each with its own random streams."""
    from qcrl.envs.point.mujoco_engine import MujocoEngine

    engines = [MujocoEngine(batch.task) for _ in range(batch.size)]
    numbers = range(batch.first, batch.first + batch.size)
    obs = np.array([e.reset(np.random.default_rng([*batch.words, n])) for e, n in zip(engines, numbers)], np.float32)
    key = jax.random.wrap_key_data(jnp.asarray(batch.words))
    keys = jax.vmap(lambda number: episode_keys(key, number)[1])(jnp.arange(numbers.start, numbers.stop))
    memory = batch.algorithm.initial_memory(batch.env)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (batch.size, *jnp.shape(x))), memory)
    state = jax.tree.map(jnp.asarray, batch.state)
    inputs = Inputs.first(jnp.asarray(obs), batch.env.action_size, len(batch.env.costs))
    totals = Totals(np.zeros(batch.size), np.zeros((batch.size, len(batch.env.costs))))
    act = partial(_act, batch.algorithm, batch.env, batch.deterministic, state)
    for _ in range(batch.task.horizon):
        action, memory = act(keys, inputs, memory)
        outcomes = [engine.step(each) for engine, each in zip(engines, np.asarray(action))]
        obs, reward = (np.array(x) for x in list(zip(*outcomes))[:2])
        cost = np.array([[outcome.costs[name] for name in batch.env.costs] for outcome in outcomes])
        met = np.column_stack([obs, np.asarray(action), reward, cost])
        require_finite(batch.env, np.isfinite(met).all(axis=1))
        totals.returns[:] += reward
        totals.costs[:] += cost
        inputs = inputs.after(*(jnp.asarray(x, jnp.float32) for x in (obs, action, reward, cost)))
    return totals


@partial(jax.jit, static_argnums=(0, 1, 2))
def _act(
    algorithm: Acts, env: Description, deterministic: bool, state: Tree, keys: Array, inputs: Inputs, memory: Memory
) -> tuple[Array, Memory]:
    def one(key: Array, inputs: Inputs, memory: Memory) -> tuple[Array, Memory]:
        key = jax.random.fold_in(key, inputs.time.astype(jnp.int32))
        return algorithm.act(env, state, inputs, memory, key, deterministic)

    return jax.vmap(one)(keys, inputs, memory)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
