"""Whole, fresh episodes of a trained policy, a fixed number of them, on the JAX engine, in MuJoCo, or in Python."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from qcrl.envs.base import Environment
from qcrl.envs.host import Host
from qcrl.errors import UserError
from qcrl.policy import Policy

ENGINES = ("jax", "mujoco")
MOST_AT_ONCE = 500
"""Episodes that the JAX engine runs side by side; more are run in several batches, so that memory is bounded."""
STRETCH = 50
"""Steps between two signs of progress."""
MUJOCO_BATCH = 32
"""Simulations that one process steps in turn, so that the policy is asked once for all of them."""

Seed = int | Sequence[int]
"""Where episodes come from: any whole numbers. Episode n of a seed is the same whatever else is run."""
Progress = Callable[[float], None]
"""Told now and then how many more episodes, or parts of one, are done."""


class Totals(NamedTuple):
    """Return and cost of every episode."""

    returns: Float[np.ndarray, " episodes"]
    costs: Float[np.ndarray, " episodes"]


class Batch(NamedTuple):
    """What one MuJoCo process needs to run some of the episodes."""

    algorithm: Any
    interface: Any
    state: Any
    task: Any
    words: UInt32[np.ndarray, "2"]
    first: int
    size: int
    deterministic: bool


def run_episodes(
    policy: Policy,
    env: Environment | Host,
    episodes: int,
    seed: Seed,
    deterministic: bool = False,
    progress: Progress = lambda done: None,
    processes: int | None = None,
) -> Totals:
    """Exactly `episodes` episodes on the JAX engine, or where the environment runs in Python there; all to their end."""
    if isinstance(env, Host):
        from qcrl.host_episodes import run_on_host

        return run_on_host(policy, env, episodes, seed, deterministic, progress, processes or 0)
    parts = -(-episodes // MOST_AT_ONCE)
    size = -(-episodes // parts)
    key = jax.random.wrap_key_data(jnp.asarray(key_words(seed)))
    advance = partial(_advance, policy.algorithm, env, deterministic, policy.state)
    totals = []
    for part in range(parts):
        keys, episode = _start(policy.algorithm, env, size, key, part * size)
        stretches = -(-env.horizon // min(STRETCH, env.horizon))
        for _ in range(stretches):
            episode = jax.block_until_ready(advance(keys, episode))
            progress(min(size, episodes - part * size) / stretches)
        totals.append(jax.device_get((episode.running, episode.total_reward, episode.total_cost)))
    running, returns, costs = (np.concatenate(column)[:episodes] for column in zip(*totals))
    if running.any():
        raise UserError(
            f"{running.sum()} episodes of {env.id} did not end within its horizon of {env.horizon} steps; "
            "give the environment its true horizon"
        )
    return Totals(returns, costs)


class _Episode(NamedTuple):
    """An episode under way."""

    env_state: Any
    memory: Any
    obs: Array
    action: Array
    reward: Array
    cost: Array
    time: Array
    running: Array
    total_reward: Array
    total_cost: Array


@partial(jax.jit, static_argnums=(0, 1, 2))
def _start(algorithm: Any, env: Environment, count: int, key: Array, first: Any) -> tuple[Array, _Episode]:
    """Keys for the actions, and episodes before their first step."""

    def begin(number: Array) -> tuple[Array, _Episode]:
        reset_key, action_key = episode_keys(key, number)
        env_state, obs = env.reset(reset_key)
        zero = jnp.zeros(())
        memory = algorithm.initial_carry(env)
        action = jnp.zeros(env.action_size)
        start = _Episode(env_state, memory, obs, action, zero, zero, jnp.int32(0), jnp.bool(True), zero, zero)
        return action_key, start

    return jax.vmap(begin)(first + jnp.arange(count))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _advance(
    algorithm: Any, env: Environment, deterministic: bool, policy_state: Any, keys: Array, episodes: _Episode
) -> _Episode:
    """Some steps further. What an environment does after the end of its episode is not counted."""

    def step(key: Array, now: _Episode) -> _Episode:
        key = jax.random.fold_in(key, now.time)
        inputs = (now.memory, now.obs, now.action, now.reward, now.cost)
        action, memory = algorithm.act(env, policy_state, *inputs, key, deterministic)
        env_state, out = env.step(now.env_state, action)
        return _Episode(
            env_state,
            memory,
            out.obs,
            action,
            out.reward,
            out.cost,
            now.time + 1,
            now.running & ~(out.terminated | out.truncated),
            now.total_reward + jnp.where(now.running, out.reward, 0.0),
            now.total_cost + jnp.where(now.running, out.cost, 0.0),
        )

    def all_step(episodes: _Episode, _: None) -> tuple[_Episode, None]:
        return jax.vmap(step)(keys, episodes), None

    return jax.lax.scan(all_step, episodes, length=min(STRETCH, env.horizon))[0]


def run_in_mujoco(
    jobs: Sequence[tuple[Policy, Seed]],
    env: Environment,
    episodes: int,
    deterministic: bool = False,
    progress: Progress = lambda done: None,
    processes: int | None = None,
) -> list[Totals]:
    """Exactly `episodes` episodes of every policy, over several processes; their number does not change the results."""
    task = getattr(env, "task", None)
    if task is None:
        raise UserError(f"{env.id} has no MuJoCo model; use the engine jax")
    starts = range(0, episodes, MUJOCO_BATCH)
    totals = [Totals(np.empty(episodes), np.empty(episodes)) for _ in jobs]
    with _workers(min(processes or _cores(), len(jobs) * len(starts))) as pool:
        places = {}
        for job, (policy, seed) in enumerate(jobs):
            state = jax.device_get(policy.state)
            for first in starts:
                count = min(MUJOCO_BATCH, episodes - first)
                batch = Batch(
                    policy.algorithm, policy.interface, state, task, key_words(seed), first, count, deterministic
                )
                places[pool.submit(_run_batch, batch)] = (job, slice(first, first + count))
        for future in as_completed(places):
            job, place = places[future]
            totals[job].returns[place], totals[job].costs[place] = future.result()
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
    from qcrl.envs.mujoco_engine import MujocoEngine

    engines = [MujocoEngine(batch.task) for _ in range(batch.size)]
    numbers = range(batch.first, batch.first + batch.size)
    obs = np.array([e.reset(np.random.default_rng([*batch.words, n])) for e, n in zip(engines, numbers)])
    key = jax.random.wrap_key_data(jnp.asarray(batch.words))
    keys = jax.vmap(lambda number: episode_keys(key, number)[1])(jnp.arange(numbers.start, numbers.stop))
    memory = batch.algorithm.initial_carry(batch.interface)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (batch.size, *jnp.shape(x))), memory)
    state = jax.tree.map(jnp.asarray, batch.state)
    action = np.zeros((batch.size, batch.interface.action_size), np.float32)
    reward, cost = np.zeros(batch.size), np.zeros(batch.size)
    totals = Totals(reward.copy(), cost.copy())
    act = partial(_act, batch.algorithm, batch.interface, batch.deterministic, state)
    for time in range(batch.task.horizon):
        inputs = (np.asarray(x, np.float32) for x in (obs, action, reward, cost))
        action, memory = act(keys, np.int32(time), memory, *inputs)
        action = np.asarray(action)
        outcomes = [engine.step(each) for engine, each in zip(engines, action)]
        obs, reward, cost = (np.array(x) for x in list(zip(*outcomes))[:3])
        totals.returns[:] += reward
        totals.costs[:] += cost
    return totals


@partial(jax.jit, static_argnums=(0, 1, 2))
def _act(
    algorithm: Any, interface: Any, deterministic: bool, state: Any, keys: Array, time: Any, *inputs: Any
) -> tuple[Array, Any]:
    def one(key: Array, *inputs: Any) -> tuple[Array, Any]:
        return algorithm.act(interface, state, *inputs, jax.random.fold_in(key, time), deterministic)

    return jax.vmap(one)(keys, *inputs)


def key_words(seed: Seed) -> UInt32[np.ndarray, "2"]:
    """The words of a random key. The first is odd, and 0 in the keys that trainings start from: never the same."""
    words = np.random.SeedSequence(seed).generate_state(2)
    words[0] |= 1
    return words


def episode_keys(key: Array, number: Array) -> tuple[Array, Array]:
    """For the start of an episode, and for its actions."""
    pair = jax.random.split(jax.random.fold_in(key, number))
    return pair[0], pair[1]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
