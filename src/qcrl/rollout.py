"""On-device rollout: parallel environments stepped in one compiled loop, with the only automatic reset there is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from qcrl.envs.base import Environment
from qcrl.networks import Inputs, Memory

Act = Callable[[Inputs, Memory, Float[Array, "env action"]], tuple[Float[Array, "env action"], Memory]]
"""Maps inputs, memory and standard normal noise to actions and the next memory."""


class Actors(NamedTuple):
    """Everything that lives on between two steps of the parallel environments; carried across rollouts."""

    env_state: Any
    inputs: Inputs
    memory: Memory
    first: Bool[Array, " env"]
    """The coming step is the first of an episode."""
    episode_return: Float[Array, " env"]
    episode_cost: Float[Array, " env"]


class Trajectory(NamedTuple):
    """A batch of experience."""

    inputs: Inputs
    first: Bool[Array, "time env"]
    action: Float[Array, "time env action"]
    reward: Float[Array, "time env"]
    cost: Float[Array, "time env"]
    terminated: Bool[Array, "time env"]
    truncated: Bool[Array, "time env"]
    next_obs: Float[Array, "time env obs"]
    """The observation after the step, at an episode's end the last one, not the first of the next episode."""
    memory: Memory
    """The memory before the first step of every chunk: [chunk, env, lstm]."""

    @property
    def ended(self) -> Bool[Array, "time env"]:
        return self.terminated | self.truncated


class Episodes(NamedTuple):
    """Finished episodes in the order of time. Rows whose `finished` is false hold nothing."""

    finished: Bool[Array, " n"]
    env_steps: Int[Array, " n"]
    return_: Float[Array, " n"]
    cost: Float[Array, " n"]


def start(env: Environment, key: Array, num_envs: int, memory: Memory) -> Actors:
    """Actors at the start of their first episodes."""
    env_state, obs = jax.vmap(env.reset)(jax.random.split(key, num_envs))
    zeros = jnp.zeros(num_envs)
    inputs = Inputs(obs, jnp.zeros((num_envs, env.action_size)), zeros, zeros)
    return Actors(env_state, inputs, memory, jnp.ones(num_envs, bool), zeros, zeros)


def rollout(
    env: Environment, act: Act, actors: Actors, key: Array, steps: int, chunk: int, steps_before: Int[Array, ""]
) -> tuple[Actors, Trajectory, Episodes]:
    """`steps` steps in every environment, after `steps_before` earlier ones in each; memories kept every `chunk` steps.

    Noise and, where episodes have a fixed length, fresh episodes are drawn before the loop: under vmap a reset inside it
    would be computed at every step.
    """
    num_envs = actors.first.shape[0]
    noise_key, reset_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, (steps, num_envs, env.action_size))
    fresh, resets = plan_resets(env, reset_key, steps, num_envs, steps_before)
    # Where episodes can only end with a chunk, the inner loop needs no reset.
    aligned = env.fixed_length and env.horizon % chunk == 0

    def step(actors: Actors, x: tuple[Array, Any, Array]) -> tuple[Actors, Array]:
        after, ended, row = step_all(env, act, actors, x[0])
        return after if aligned else begin_again(after, ended, fresh(x[1])), row

    def run_chunk(actors: Actors, xs: tuple[Array, Any, Array]) -> tuple[Actors, tuple[Array, Memory]]:
        memory = actors.memory
        actors, rows = jax.lax.scan(step, actors, xs)
        if aligned:
            # Episodes end together, at the multiples of the horizon.
            ended = jnp.broadcast_to((xs[2][-1] + 1) % env.horizon == 0, actors.first.shape)
            actors = begin_again(actors, ended, fresh(xs[1][-1]))
        return actors, (rows, memory)

    times = steps_before + jnp.arange(steps, dtype=jnp.int32)
    chunked = jax.tree.map(lambda x: x.reshape(-1, chunk, *x.shape[1:]), (noise, resets, times))
    after, (rows, memory) = jax.lax.scan(run_chunk, actors, chunked)
    trajectory, totals = unpack(env, actors, rows.reshape(steps, *rows.shape[2:]), memory)
    actors = after
    time = steps_before + 1 + jnp.arange(steps, dtype=jnp.int32)[:, None]
    episodes = Episodes(trajectory.ended, jnp.broadcast_to(time * num_envs, trajectory.ended.shape), *totals)
    if env.fixed_length:
        episodes = rows_with_an_end(episodes, env.horizon, steps_before)
    return actors, trajectory, jax.tree.map(jnp.ravel, episodes)


def step_all(
    env: Environment, act: Act, actors: Actors, noise: Array
) -> tuple[Actors, Bool[Array, " env"], Float[Array, "env row"]]:
    """One step of all environments: the actors after it, whose episode it ended, and what `unpack` reads."""
    action, memory = act(actors.inputs, actors.memory, noise)
    env_state, out = jax.vmap(env.step)(actors.env_state, action)
    totals = actors.episode_return + out.reward, actors.episode_cost + out.cost
    inputs = Inputs(out.obs, action, out.reward, out.cost)
    after = Actors(env_state, inputs, memory, jnp.zeros_like(actors.first), *totals)
    # One array, because on an accelerator every array that a loop records costs a launch at every step.
    numbers = (out.reward, out.cost, out.terminated, out.truncated, *totals)
    row = jnp.concatenate(
        [actors.inputs.obs, out.obs, action, *(x[:, None].astype(jnp.float32) for x in numbers)], axis=1
    )
    return after, out.terminated | out.truncated, row


def unpack(
    env: Environment, start: Actors, rows: Float[Array, "time env row"], memory: Memory
) -> tuple[Trajectory, tuple[Array, Array]]:
    """What `step_all`, or a host rollout, recorded, and what follows from it: the previous action, reward and cost of every step."""
    sizes = [env.observation_size, env.observation_size, env.action_size]
    places = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    obs, next_obs, action, numbers = jnp.split(rows, places, axis=-1)
    reward, cost, terminated, truncated, *totals = jnp.moveaxis(numbers, -1, 0)
    ended = (terminated + truncated) > 0
    first = jnp.concatenate([start.first[None], ended[:-1]])

    def previous(at_start: Array, x: Array) -> Array:
        shifted = jnp.concatenate([at_start[None], x[:-1]])
        return jnp.where(first.reshape(first.shape + (1,) * (x.ndim - 2)), 0.0, shifted)

    inputs = Inputs(
        obs,
        previous(start.inputs.previous_action, action),
        previous(start.inputs.previous_reward, reward),
        previous(start.inputs.previous_cost, cost),
    )
    trajectory = Trajectory(inputs, first, action, reward, cost, terminated > 0, truncated > 0, next_obs, memory)
    return trajectory, (totals[0], totals[1])


def begin_again(actors: Actors, ended: Bool[Array, " env"], fresh: tuple[Any, Float[Array, "env obs"]]) -> Actors:
    """Actors whose episode has ended begin the fresh one, with nothing remembered of the last."""
    empty = jax.tree.map(jnp.zeros_like, actors)
    begun = empty._replace(
        env_state=fresh[0], inputs=empty.inputs._replace(obs=fresh[1]), first=jnp.ones_like(actors.first)
    )
    return jax.tree.map(lambda new, old: jnp.where(_expand(ended, new), new, old), begun, actors)


def _expand(mask: Array, like: Array) -> Array:
    return mask.reshape(mask.shape + (1,) * (like.ndim - 1))


def plan_resets(
    env: Environment, key: Array, steps: int, num_envs: int, steps_before: Array
) -> tuple[Callable[[Any], tuple[Any, Array]], Any]:
    """A function that gives fresh episodes for all environments, and its argument for every step."""
    if not env.fixed_length:
        return jax.vmap(env.reset), jax.random.split(key, (steps, num_envs))
    # All environments end together, at the multiples of the horizon.
    count = -(-steps // env.horizon)
    drawn = jax.vmap(jax.vmap(env.reset))(jax.random.split(key, (count, num_envs)))
    index = (steps_before + jnp.arange(steps)) // env.horizon - steps_before // env.horizon
    return lambda which: jax.tree.map(lambda x: x[which], drawn), index


def rows_with_an_end(episodes: Episodes, horizon: int, steps_before: Array) -> Episodes:
    """Only the steps that are a multiple of the horizon, in a fixed number of rows."""
    steps = episodes.finished.shape[0]
    rows = jnp.arange(-(-steps // horizon)) * horizon + (horizon - 1 - steps_before % horizon)
    chosen = jax.tree.map(lambda x: x[jnp.minimum(rows, steps - 1)], episodes)
    return chosen._replace(finished=chosen.finished & (rows < steps)[:, None])
