"""Whole, fresh episodes on the device, many side by side."""

import itertools
import os
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event, Lock
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from qcrl.envs.base import Environment
from qcrl.errors import UserError
from qcrl.kinds import Tree
from qcrl.nets.network import Inputs, Memory
from qcrl.sampling.learner import Acts
from qcrl.sampling.play.seeds import Played, Progress, Seed, Totals, episode_keys, joined, key_words, require_finite

MOST_AT_ONCE = {"cpu": 500}
"""Episodes that run side by side; more are run in several batches, so that memory is bounded."""
MOST_ON_ACCELERATORS = 100_000
STRETCH = 50
"""Steps between two signs of progress."""


class Sums(NamedTuple):
    """What an episode has brought, up to its end."""

    reward: Float[Array, ""]
    cost: Float[Array, " cost"]
    discounted: Float[Array, " cost"]
    """Costs that count less the later they come."""


class Episode(NamedTuple):
    """An episode under way. Its costs so far and its length are among the inputs."""

    env_state: Tree
    inputs: Inputs
    memory: Memory
    sums: Sums
    running: Bool[Array, ""]
    finite: Bool[Array, ""]
    """Whether all that was seen, done, earned and paid so far is a number."""


class Part(NamedTuple):
    """Episodes that run side by side, as one call of the compiled program after the other."""

    jobs: list[tuple[Played, Seed]]
    counted: list[int]
    """Numbers of the policies that are asked about; more of the same may stand behind them, to fill the program."""
    first: int
    size: int
    wanted: int
    """The first so many episodes are asked for."""


def play_on_device(
    jobs: Sequence[tuple[Played, Seed]],
    env: Environment,
    episodes: int,
    deterministic: bool = False,
    progress: Progress = lambda done: None,
    discount: float | None = None,
    first: int = 0,
    batch: int | None = None,
) -> list[Totals]:
    """Exactly `episodes` episodes of every policy, from number `first` on, all to their end.

    Policies that differ in their numbers alone are played side by side, as many as there is room for. A CPU plays as
    many parts at a time as it has cores: XLA itself uses one for most of the steps. With a `batch`, every policy is
    played in parts of that size, so that one program serves other numbers of episodes, too.
    """
    alike = _alike([policy for policy, _ in jobs])
    parts = [part for numbers in alike for part in _parts(jobs, numbers, episodes, first, batch)]
    stopped, lock = Event(), Lock()

    def advance(more: float) -> None:
        if stopped.is_set():
            raise InterruptedError("another part was stopped")
        with lock:
            progress(more)

    together = (os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1
    run = partial(_play_part, env=env, deterministic=deterministic, progress=advance, discount=discount)
    with ThreadPoolExecutor(min(together, len(parts))) as pool:
        try:
            found = list(pool.map(run, parts))
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    totals: dict[int, list[Totals]] = {}
    for part, own in zip(parts, found):
        for number, each in zip(part.counted, own):
            totals.setdefault(number, []).append(each)
    return [joined(totals[number]) for number in range(len(jobs))]


def _parts(
    jobs: Sequence[tuple[Played, Seed]], alike: list[int], episodes: int, first: int, batch: int | None
) -> list[Part]:
    """Of policies that one program can play: several together, or where there is no room for two, each in parts."""
    room = MOST_AT_ONCE.get(jax.default_backend(), MOST_ON_ACCELERATORS)
    if batch or room < 2 * episodes:
        size = batch or -(-episodes // -(-episodes // room))
        parts = []
        for number, start in itertools.product(alike, range(0, episodes, size)):
            wanted = min(size, episodes - start)
            parts.append(Part([jobs[number]], [number], first + start, wanted if batch else size, wanted))
        return parts
    together = -(-len(alike) // -(-len(alike) // (room // episodes)))
    parts = []
    for start in range(0, len(alike), together):
        numbers = alike[start : start + together]
        filled = [jobs[number] for number in (numbers + numbers[-1:] * together)[:together]]  # one program for all
        parts.append(Part(filled, numbers, first, episodes, episodes))
    return parts


def _alike(policies: Sequence[Played]) -> list[list[int]]:
    """Numbers of policies, together where one program can play them."""
    found: dict[Hashable, list[int]] = {}
    for number, policy in enumerate(policies):
        leaves, structure = jax.tree.flatten(policy.state)
        shapes = tuple((jnp.shape(leaf), jnp.asarray(leaf).dtype) for leaf in leaves)
        found.setdefault((policy.algorithm, structure, shapes), []).append(number)
    return list(found.values())


def _play_part(
    part: Part, env: Environment, deterministic: bool, progress: Progress, discount: float | None
) -> list[Totals]:
    """The episodes of one part, of each policy that is asked about."""
    algorithm = part.jobs[0][0].algorithm
    keys = jax.random.wrap_key_data(jnp.stack([jnp.asarray(key_words(seed)) for _, seed in part.jobs]))
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(policy.state for policy, _ in part.jobs))
    action_keys, episode = _start(algorithm, env, part.size, keys, part.first)
    stretches = -(-env.horizon // min(STRETCH, env.horizon))
    for _ in range(stretches):
        episode = _advance(algorithm, env, deterministic, discount or 1.0, states, action_keys, episode)
        jax.block_until_ready(episode)
        progress(len(part.counted) * part.wanted / stretches)
    found = jax.device_get((*episode.sums, episode.running, episode.finite))
    returns, costs, discounted, running, finite = (each[:, : part.wanted] for each in found)
    require_finite(env, finite)
    if running.any():
        raise UserError(
            f"{running.sum()} episodes of {env.id} did not end within its horizon of {env.horizon} steps; "
            "give the environment its true horizon"
        )
    each = range(len(part.counted))
    return [Totals(returns[i], costs[i], None if discount is None else discounted[i]) for i in each]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _start(algorithm: Acts, env: Environment, count: int, keys: Array, first: int) -> tuple[Array, Episode]:
    """Keys for the actions, and episodes before their first step, of every policy."""

    def begin(key: Array, number: Array) -> tuple[Array, Episode]:
        reset_key, action_key = episode_keys(key, number)
        env_state, obs = env.reset(reset_key)
        inputs = Inputs.first(obs, env.action_size, len(env.costs))
        nothing = jnp.zeros(len(env.costs))
        memory = algorithm.initial_memory(env)
        sums = Sums(jnp.zeros(()), nothing, nothing)
        return action_key, Episode(env_state, inputs, memory, sums, jnp.bool(True), jnp.isfinite(obs).all())

    return jax.vmap(jax.vmap(begin, (None, 0)), (0, None))(keys, first + jnp.arange(count))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _advance(
    algorithm: Acts,
    env: Environment,
    deterministic: bool,
    discount: float,
    states: Tree,
    keys: Array,
    episodes: Episode,
) -> Episode:
    """Some steps further. What an environment does after the end of its episode is not counted."""

    def step(state: Tree, key: Array, now: Episode) -> Episode:
        time = now.inputs.time
        key = jax.random.fold_in(key, time.astype(jnp.int32))
        action, memory = algorithm.act(env, state, now.inputs, now.memory, key, deterministic)
        env_state, out = env.step(now.env_state, action)
        cost = out.cost.reshape(len(env.costs))
        counted, sums = jnp.where(now.running, cost, 0.0), now.sums
        met = jnp.concatenate([out.obs, action, cost, out.reward[None]])
        return Episode(
            env_state,
            now.inputs.after(out.obs, action, out.reward, cost),
            memory,
            Sums(
                sums.reward + jnp.where(now.running, out.reward, 0.0),
                sums.cost + counted,
                sums.discounted + discount**time * counted,
            ),
            now.running & ~(out.terminated | out.truncated),
            now.finite & (~now.running | jnp.isfinite(met).all()),
        )

    def all_step(episodes: Episode, _: None) -> tuple[Episode, None]:
        return jax.vmap(jax.vmap(step, (None, 0, 0)))(states, keys, episodes), None

    return jax.lax.scan(all_step, episodes, length=min(STRETCH, env.horizon))[0]
