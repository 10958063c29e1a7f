"""Whole, fresh episodes in environments that run in Python."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from qcrl.envs.base import Described
from qcrl.envs.host.environment import HostEnv, is_vector
from qcrl.envs.host.fleet import Fleet
from qcrl.errors import UserError
from qcrl.kinds import Tree
from qcrl.nets.network import Inputs, Memory
from qcrl.sampling.learner import Acts
from qcrl.sampling.play.seeds import Played, Progress, Seed, Totals, episode_keys, key_words, require_finite

SIDE_BY_SIDE = 16
"""Environments that are stepped together, so that the policy is asked once for all of them."""
SECONDS_BETWEEN_SIGNS = 1.0
LONGEST = 1_000_000
"""Steps after which an episode counts as one that never ends."""


class Moment(NamedTuple):
    """What is known before a step, or after the last one."""

    inputs: Inputs
    memory: Memory


class Crew:
    """Worker processes that stay from one call of `play_on_host` to the next, until it is closed."""

    def __init__(self, workers: int = 0, timeout: float = 60.0) -> None:
        """Without workers, environments are made anew for every call, in this process.

        timeout: seconds after which a worker that does not answer is given up.
        """
        self.workers = workers
        self.timeout = timeout
        self.kept: tuple[HostEnv, int, Fleet] | None = None

    @contextmanager
    def fleet(self, env: HostEnv, count: int) -> Iterator[Fleet]:
        if not self.workers:
            with closing(env.fleet(count)) as fleet:
                yield fleet
            return
        if self.kept is None or self.kept[:2] != (env, count):
            self.close()
            self.kept = (env, count, env.fleet(count, self.workers, self.timeout))
        try:
            yield self.kept[2]
        except BaseException:
            self.close()  # a step may be under way
            raise

    def close(self) -> None:
        if self.kept is not None:
            self.kept[2].close()
        self.kept = None


def play_on_host(
    policy: Played,
    env: HostEnv,
    episodes: int | Sequence[int],
    seed: Seed,
    deterministic: bool = False,
    progress: Progress = lambda done: None,
    crew: Crew = Crew(),  # noqa: B008
    watch: Callable[[Moment], None] | None = None,
    side_by_side: int = SIDE_BY_SIDE,
) -> Totals:
    """So many episodes, or those of these numbers, all run to their end: so many finished ones would favour short ones.

    Episode n is reset with a seed of its own: it is the same whatever else is run, where the environment obeys seeds.
    Who watches sees one episode at a time. How many are run side by side may change an episode by rounding.
    """
    if is_vector(env.only):
        raise UserError(f"{env.id} is a vector environment; to evaluate, pass the function that makes one environment")
    words = key_words(seed)
    wanted = list(range(episodes)) if isinstance(episodes, int) else list(episodes)
    together = 1 if watch else min(side_by_side, len(wanted))
    count = together if env.num_envs is None else env.num_envs
    # Steps are too many and too small for an accelerator.
    state = jax.device_put(policy.state, jax.local_devices(backend="cpu")[0])
    act = partial(_act, policy.algorithm, policy.env, deterministic, state, words)
    # Places that have no more episodes to run go on with ones that do not count.
    spare = max(wanted) + 1
    number = lambda turn: wanted[turn] if turn < len(wanted) else spare + turn
    totals = np.full((len(wanted), 1 + len(env.costs)), np.nan)
    turns, sums = np.arange(count), np.zeros((count, 1 + len(env.costs)))
    memory = jax.tree.map(
        lambda x: np.broadcast_to(x, (count, *jnp.shape(x))), policy.algorithm.initial_memory(policy.env)
    )
    upcoming = [_seed(words, number(turn + count)) for turn in turns]
    with crew.fleet(env, count) as fleet:
        obs = fleet.reset([_seed(words, number(turn)) for turn in turns])
        inputs, told = _first(env, obs), time.monotonic()
        while np.isnan(totals).any():
            if watch is not None:
                watch(Moment(inputs, memory))
            if time.monotonic() - told >= SECONDS_BETWEEN_SIGNS:
                told = time.monotonic()
                progress(0)  # an episode may last for ever
            action, memory = act(np.array([number(turn) for turn in turns]), inputs, memory)
            require_finite(env, np.isfinite(np.column_stack([inputs.obs, action])).all(axis=1))
            out = fleet.step(env.actions.to_env(np.asarray(action)), upcoming)
            sums += np.column_stack([out.reward, out.cost])
            after = inputs.after(*map(_single, (out.obs, action, out.reward, out.cost)))  # type: ignore[arg-type]
            inputs = _choose(out.ended, _first(env, out.obs), after)
            if watch is not None and out.ended.any():
                watch(Moment(after._replace(obs=jnp.asarray(_single(out.next_obs))), memory))
            for place in np.flatnonzero(out.ended):
                if turns[place] < len(wanted):
                    totals[turns[place]] = sums[place]
                    progress(1)
                sums[place] = 0
                turns[place] += count
                upcoming[place] = _seed(words, number(turns[place] + count))
            if inputs.time.max() >= LONGEST:
                raise UserError(f"an episode of {env.id} has not ended after {LONGEST:,} steps; give it a time limit")
    return Totals(totals[:, 0], totals[:, 1:])


@partial(jax.jit, static_argnums=(0, 1, 2))
def _act(
    algorithm: Acts,
    env: Described,
    deterministic: bool,
    state: Tree,
    words: Array,
    numbers: Array,
    inputs: Inputs,
    memory: Memory,
) -> tuple[Array, Memory]:
    key = jax.random.wrap_key_data(words)

    def one(number: Array, inputs: Inputs, memory: Memory) -> tuple[Array, Memory]:
        start = algorithm.initial_memory(env)
        memory = jax.tree.map(lambda x, blank: jnp.where(inputs.time == 0, blank, x), memory, start)
        action_key = jax.random.fold_in(episode_keys(key, number)[1], inputs.time.astype(jnp.int32))
        return algorithm.act(env, state, inputs, memory, action_key, deterministic)

    return jax.vmap(one)(numbers, inputs, memory)


def _first(env: Described, obs: np.ndarray) -> Inputs:
    zeros = lambda *size: np.zeros((len(obs), *size), np.float32)
    costs = len(env.costs)
    known: tuple[Tree, ...] = (_single(obs), zeros(env.action_size), zeros(), zeros(costs), zeros(costs), zeros())
    return Inputs(*known)


def _choose(ended: np.ndarray, begun: Inputs, going_on: Inputs) -> Inputs:
    pick = lambda new, old: np.where(ended.reshape(-1, *(1,) * (np.ndim(new) - 1)), new, old)
    return jax.tree.map(pick, begun, going_on)


def _single(x: Any) -> np.ndarray:
    return np.asarray(x, np.float32)


def _seed(words: np.ndarray, number: int) -> int:
    return int(np.random.SeedSequence([*words.tolist(), int(number)]).generate_state(1)[0]) >> 1
