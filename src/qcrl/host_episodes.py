"""Whole, fresh episodes of a trained policy in an environment that runs in Python."""

from contextlib import closing
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from qcrl.envs.host import Host, is_vector
from qcrl.episodes import Progress, Seed, Totals, episode_keys, key_words
from qcrl.errors import UserError
from qcrl.policy import Policy

SIDE_BY_SIDE = 16
"""Environments that are stepped together, so that the policy is asked once for all of them."""
LONGEST = 1_000_000
"""Steps after which an episode counts as one that never ends."""


def run_on_host(
    policy: Policy,
    host: Host,
    episodes: int,
    seed: Seed,
    deterministic: bool = False,
    progress: Progress = lambda done: None,
    workers: int = 0,
) -> Totals:
    """Exactly `episodes` episodes, all run to their end: stopping at so many finished ones would favour short ones.

    Episode n is reset with a seed of its own, so it is the same whatever else is run, where the environment obeys seeds.
    """
    if is_vector(host.only):
        raise UserError(f"{host.id} is a vector environment; to evaluate, pass the function that makes one environment")
    words = key_words(seed)
    count = min(SIDE_BY_SIDE, episodes) if host.num_envs is None else host.num_envs
    # Steps are too many and too small for an accelerator.
    state = jax.device_put(policy.state, jax.local_devices(backend="cpu")[0])
    act = partial(_act, policy.algorithm, policy.interface, deterministic, state, words)
    returns, costs = np.full(episodes, np.nan), np.full(episodes, np.nan)
    numbers, time = np.arange(count), np.zeros(count, np.int32)
    totals = np.zeros((2, count))
    memory = jax.tree.map(
        lambda x: np.broadcast_to(x, (count, *jnp.shape(x))), policy.algorithm.initial_carry(policy.interface)
    )
    previous = np.zeros((count, host.action_size + 2), np.float32)
    upcoming = [_seed(words, number + count) for number in numbers]
    with closing(host.fleet(count, workers)) as fleet:
        obs = fleet.reset([_seed(words, number) for number in numbers])
        while np.isnan(costs).any():
            action, memory = act(numbers, time, memory, obs, previous)
            action = np.asarray(action)
            out = fleet.step(host.actions.to_env(action), upcoming)
            obs = out.obs
            totals += (out.reward, out.cost)
            time += 1
            previous = np.column_stack([action, out.reward, out.cost]).astype(np.float32)
            for place in np.flatnonzero(out.ended):
                if numbers[place] < episodes:
                    returns[numbers[place]], costs[numbers[place]] = totals[:, place]
                    progress(1)
                totals[:, place] = time[place] = previous[place] = 0
                numbers[place] += count
                upcoming[place] = _seed(words, numbers[place] + count)
            if time.max() >= LONGEST:
                raise UserError(f"an episode of {host.id} has not ended after {LONGEST:,} steps; give it a time limit")
    return Totals(returns, costs)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _act(
    algorithm: Any,
    interface: Any,
    deterministic: bool,
    state: Any,
    words: Array,
    numbers: Array,
    time: Array,
    memory: Any,
    obs: Array,
    previous: Array,
) -> tuple[Array, Any]:
    key = jax.random.wrap_key_data(words)

    def one(number: Array, time: Array, memory: Any, obs: Array, previous: Array) -> tuple[Array, Any]:
        fresh = jax.tree.map(
            lambda x, start: jnp.where(time == 0, start, x), memory, algorithm.initial_carry(interface)
        )
        action_key = jax.random.fold_in(episode_keys(key, number)[1], time)
        inputs = (obs, previous[:-2], previous[-2], previous[-1])
        return algorithm.act(interface, state, fresh, *inputs, action_key, deterministic)

    return jax.vmap(one)(numbers, time, memory, obs, previous)


def _seed(words: np.ndarray, number: Any) -> int:
    return int(np.random.SeedSequence([*words.tolist(), int(number)]).generate_state(1)[0]) >> 1
