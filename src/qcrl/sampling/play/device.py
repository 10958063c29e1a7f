"""Whole, fresh episodes on the device, many side by side."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from qcrl.envs.base import Environment
from qcrl.errors import UserError
from qcrl.kinds import Tree
from qcrl.nets.network import Inputs, Memory
from qcrl.sampling.learner import Acts
from qcrl.sampling.play.seeds import Played, Progress, Seed, Totals, episode_keys, key_words, require_finite

MOST_AT_ONCE = {"cpu": 500}
"""Episodes that run side by side; more are run in several batches, so that memory is bounded."""
MOST_ON_ACCELERATORS = 20_000
STRETCH = 50
"""Steps between two signs of progress."""


class Episode(NamedTuple):
    """An episode under way. Its costs so far and its length are among the inputs."""

    env_state: Tree
    inputs: Inputs
    memory: Memory
    running: Bool[Array, ""]
    total_reward: Float[Array, ""]
    total_cost: Float[Array, " cost"]
    discounted: Float[Array, " cost"]
    finite: Bool[Array, ""]
    """Whether all that was seen, done, earned and paid so far is a number."""


def play_on_device(
    policy: Played,
    env: Environment,
    episodes: int,
    seed: Seed,
    deterministic: bool = False,
    progress: Progress = lambda done: None,
    discount: float | None = None,
    first: int = 0,
) -> Totals:
    """Exactly `episodes` episodes, from number `first` on, all to their end."""
    parts = -(-episodes // MOST_AT_ONCE.get(jax.default_backend(), MOST_ON_ACCELERATORS))
    size = -(-episodes // parts)
    key = jax.random.wrap_key_data(jnp.asarray(key_words(seed)))
    advance = partial(_advance, policy.algorithm, env, deterministic, discount or 1.0, policy.state)
    totals = []
    for part in range(parts):
        keys, episode = _start(policy.algorithm, env, size, key, first + part * size)
        stretches = -(-env.horizon // min(STRETCH, env.horizon))
        for _ in range(stretches):
            episode = jax.block_until_ready(advance(keys, episode))
            progress(min(size, episodes - part * size) / stretches)
        totals.append(jax.device_get(episode[3:]))
    running, returns, costs, discounted, finite = (np.concatenate(column)[:episodes] for column in zip(*totals))
    require_finite(env, finite)
    if running.any():
        raise UserError(
            f"{running.sum()} episodes of {env.id} did not end within its horizon of {env.horizon} steps; "
            "give the environment its true horizon"
        )
    return Totals(returns, costs, None if discount is None else discounted)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _start(algorithm: Acts, env: Environment, count: int, key: Array, first: Any) -> tuple[Array, Episode]:
    """Keys for the actions, and episodes before their first step."""

    def begin(number: Array) -> tuple[Array, Episode]:
        reset_key, action_key = episode_keys(key, number)
        env_state, obs = env.reset(reset_key)
        inputs = Inputs.first(obs, env.action_size, len(env.costs))
        nothing = jnp.zeros(len(env.costs))
        memory = algorithm.initial_memory(env)
        begun = jnp.bool(True), jnp.zeros(()), nothing, nothing, jnp.isfinite(obs).all()
        return action_key, Episode(env_state, inputs, memory, *begun)

    return jax.vmap(begin)(first + jnp.arange(count))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _advance(
    algorithm: Acts,
    env: Environment,
    deterministic: bool,
    discount: float,
    state: Tree,
    keys: Array,
    episodes: Episode,
) -> Episode:
    """Some steps further. What an environment does after the end of its episode is not counted."""

    def step(key: Array, now: Episode) -> Episode:
        time = now.inputs.time
        key = jax.random.fold_in(key, time.astype(jnp.int32))
        action, memory = algorithm.act(env, state, now.inputs, now.memory, key, deterministic)
        env_state, out = env.step(now.env_state, action)
        cost = out.cost.reshape(len(env.costs))
        counted = jnp.where(now.running, cost, 0.0)
        met = jnp.concatenate([out.obs, action, cost, out.reward[None]])
        return Episode(
            env_state,
            now.inputs.after(out.obs, action, out.reward, cost),
            memory,
            now.running & ~(out.terminated | out.truncated),
            now.total_reward + jnp.where(now.running, out.reward, 0.0),
            now.total_cost + counted,
            now.discounted + discount**time * counted,
            now.finite & (~now.running | jnp.isfinite(met).all()),
        )

    def all_step(episodes: Episode, _: None) -> tuple[Episode, None]:
        return jax.vmap(step)(keys, episodes), None

    return jax.lax.scan(all_step, episodes, length=min(STRETCH, env.horizon))[0]
