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


class Row(NamedTuple):
    """Episodes of one policy, from number `first` on."""

    number: int
    """Of the policy."""
    first: int
    wanted: int
    """More of them may run, to fill the program."""


class Part(NamedTuple):
    """Rows that run side by side, as one call of the compiled program after the other."""

    rows: list[Row]
    together: int
    """Rows of the program; the last one stands in it several times if there are fewer."""
    size: int
    """Episodes of a row."""


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
    played in batches of that size, so that one program serves other numbers of episodes, too: for one policy batch by
    batch, and for several on an accelerator as many batches side by side as there is room for.
    """
    alike = _alike([policy for policy, _ in jobs])
    parts = [part for numbers in alike for part in _parts(numbers, episodes, first, batch)]
    stopped, lock = Event(), Lock()

    def advance(more: float) -> None:
        if stopped.is_set():
            raise InterruptedError("another part was stopped")
        with lock:
            progress(more)

    together = (os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1
    run = partial(_play_part, jobs, env=env, deterministic=deterministic, progress=advance, discount=discount)
    with ThreadPoolExecutor(min(together, len(parts))) as pool:
        try:
            found = list(pool.map(run, parts))
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    totals: dict[int, list[Totals]] = {}
    for part, own in zip(parts, found):
        for row, each in zip(part.rows, own):
            totals.setdefault(row.number, []).append(each)
    return [joined(totals[number]) for number in range(len(jobs))]


def _parts(alike: list[int], episodes: int, first: int, batch: int | None) -> list[Part]:
    """Of policies that one program can play: several together, or where there is no room for two, each in parts."""
    cpu = jax.default_backend() == "cpu"
    room = MOST_AT_ONCE.get(jax.default_backend(), MOST_ON_ACCELERATORS)
    size = min(batch, episodes) if batch else -(-episodes // -(-episodes // room))
    rows = [
        Row(number, first + start, min(size, episodes - start))
        for number, start in itertools.product(alike, range(0, episodes, size))
    ]
    most = 1 if batch and (cpu or len(alike) == 1) else max(1, room // size)
    together = -(-len(rows) // -(-len(rows) // most))
    return [Part(rows[start : start + together], together, size) for start in range(0, len(rows), together)]


def _alike(policies: Sequence[Played]) -> list[list[int]]:
    """Numbers of policies, together where one program can play them."""
    found: dict[Hashable, list[int]] = {}
    for number, policy in enumerate(policies):
        leaves, structure = jax.tree.flatten(policy.state)
        shapes = tuple((jnp.shape(leaf), jnp.asarray(leaf).dtype) for leaf in leaves)
        found.setdefault((policy.algorithm, structure, shapes), []).append(number)
    return list(found.values())


def _play_part(
    jobs: Sequence[tuple[Played, Seed]],
    part: Part,
    env: Environment,
    deterministic: bool,
    progress: Progress,
    discount: float | None,
) -> list[Totals]:
    """The episodes of one part, of each of its rows."""
    filled = (part.rows + part.rows[-1:] * part.together)[: part.together]
    policies, seeds = zip(*(jobs[row.number] for row in filled))
    algorithm = policies[0].algorithm
    keys = jax.random.wrap_key_data(jnp.stack([jnp.asarray(key_words(seed)) for seed in seeds]))
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(policy.state for policy in policies))
    firsts = jnp.asarray([row.first for row in filled])
    action_keys, episode = _start(algorithm, env, part.size, keys, firsts)
    stretches = -(-env.horizon // min(STRETCH, env.horizon))
    for _ in range(stretches):
        episode = _advance(algorithm, env, deterministic, discount or 1.0, states, action_keys, episode)
        jax.block_until_ready(episode)
        progress(sum(row.wanted for row in part.rows) / stretches)
    found = jax.device_get((*episode.sums, episode.running, episode.finite))
    totals = []
    for place, row in enumerate(part.rows):
        returns, costs, discounted, running, finite = (each[place, : row.wanted] for each in found)
        require_finite(env, finite)
        if running.any():
            raise UserError(
                f"{running.sum()} episodes of {env.id} did not end within its horizon of {env.horizon} steps; "
                "give the environment its true horizon"
            )
        totals.append(Totals(returns, costs, None if discount is None else discounted))
    return totals


@partial(jax.jit, static_argnums=(0, 1, 2))
def _start(algorithm: Acts, env: Environment, count: int, keys: Array, firsts: Array) -> tuple[Array, Episode]:
    """Keys for the actions, and episodes before their first step, of every row."""

    def begin(key: Array, number: Array) -> tuple[Array, Episode]:
        reset_key, action_key = episode_keys(key, number)
        env_state, obs = env.reset(reset_key)
        inputs = Inputs.first(obs, env.action_size, len(env.costs))
        nothing = jnp.zeros(len(env.costs))
        memory = algorithm.initial_memory(env)
        sums = Sums(jnp.zeros(()), nothing, nothing)
        return action_key, Episode(env_state, inputs, memory, sums, jnp.bool(True), jnp.isfinite(obs).all())

    return jax.vmap(jax.vmap(begin, (None, 0)))(keys, firsts[:, None] + jnp.arange(count))


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
