"""Sampling on the device: parallel environments stepped in one compiled loop, with the only auto-reset there is."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from qcrl.envs.base import Described, Environment
from qcrl.envs.drawing import drawn
from qcrl.kinds import Tree
from qcrl.nets.network import Inputs, Memory
from qcrl.sampling.learner import Learner, Scalars
from qcrl.sampling.record import Actors, Episodes, Experience, Metrics, Record, State, choose, pack, unpack

Act = Callable[[Inputs, Memory, Float[Array, "env action"]], tuple[Float[Array, "env action"], Memory]]
"""Maps inputs, memory and standard normal noise to actions and the next memory."""
Fresh = Callable[[Tree], tuple[Tree, Float[Array, "env obs"]]]
"""Gives the states and first observations of fresh episodes in all environments."""


def begin(env: Described, key: Array, num_envs: int, memory: Memory) -> Actors:
    """Actors at the start of their first episodes. Environments in Python are reset where they are stepped."""
    if hasattr(env, "reset"):
        env_state, obs = jax.vmap(env.reset)(jax.random.split(key, num_envs))
    else:
        env_state, obs = jnp.zeros(num_envs), jnp.zeros((num_envs, env.observation_size))
    inputs = Inputs.first(obs, env.action_size, len(env.costs))._replace(asked=drawn(env, env_state))
    memory = jax.tree.map(lambda x: jnp.zeros((num_envs, *jnp.shape(x))), memory)
    return Actors(env_state, inputs, memory, jnp.zeros(num_envs))


def iterate(learner: Learner, env: Environment, state: State) -> tuple[State, Metrics]:
    """One iteration of one lane: blocks of experience, each of which is learned from.

    Noise and, where episodes have a fixed length, fresh episodes are drawn before the loops: under vmap a reset inside
    them would be computed at every step.
    """
    steps, num_envs = learner.steps_per_env, learner.num_envs
    blocks, chunk = steps // learner.block_length, learner.memory_interval(env)
    with learner.precision():
        key, rollout_key = jax.random.split(state.key)
        noise_key, reset_key = jax.random.split(rollout_key)
        before = state.env_steps // num_envs
        noise = jax.random.normal(noise_key, (steps, num_envs, env.action_size))
        groups = env.horizon // steps if learner.staggers(env) else 1
        with jax.named_scope("resets"):
            fresh, resets = plan_resets(env, reset_key, steps, num_envs // groups, before)
        times = before + jnp.arange(steps, dtype=jnp.int32)
        period = reset_period(env, steps, chunk)
        between = env.fixed_length and period == steps  # no episode ends but with the iteration

        def block(now: State, xs: tuple[Array, Tree, Array]) -> tuple[State, tuple[Scalars, Tree]]:
            actor = learner.actor(env, now)
            act: Act = lambda *step: learner.sample(env, actor, *step)
            with jax.named_scope("rollout"):
                actors, rows, memory = collect(env, act, now.actors, xs, chunk, 0 if between else period, fresh)
            episodes = finished_episodes(env, rows, xs[2][0], num_envs, groups)
            experience = Experience(rows, now.actors, episodes, memory)
            now = now._replace(actors=actors, env_steps=now.env_steps + learner.block_length * num_envs)
            if blocks == 1:
                now = now._replace(window=now.window.add(episodes))
            now, scalars = learner.learn(env, now, experience)
            return now, (scalars, episodes if blocks == 1 else rows)

        xs = noise, resets, times
        now = state._replace(key=key)
        if blocks == 1:
            now, (scalars, episodes) = block(now, xs)
        else:
            cut = lambda x: x.reshape(blocks, -1, *x.shape[1:])
            now, (scalars, rows) = jax.lax.scan(block, now, jax.tree.map(cut, xs))
            scalars = jax.tree.map(lambda x: x[-1], scalars)
            episodes = finished_episodes(env, rows.reshape(steps, *rows.shape[2:]), before, num_envs, groups)
            now = now._replace(window=state.window.add(episodes))
        if between:
            ended = now.actors.inputs.time >= env.horizon
            if groups > 1:
                now = spread_out(state, now)
                ended = jnp.where(state.iteration < 0, group_of(num_envs, groups) == -1 - state.iteration, ended)
            now = now._replace(actors=auto_reset(now.actors, ended, tiled(fresh(resets[-1]), groups)))
        return learner.finish(env, state, now, episodes, scalars)


def iterations_ahead(learner: Learner, env: Described) -> int:
    """Iterations before the first, which spread the episodes of fixed length out over all phases.

    At the end of each, another of several equal groups of environments begins a fresh episode. So no episode is ever
    cut short in what is counted. Nothing is learned from these steps, and none of them is counted.
    """
    return env.horizon // learner.steps_per_env - 1 if hasattr(env, "reset") and learner.staggers(env) else 0


def spread_out(before: State, now: State) -> State:
    """After an iteration ahead of the first only the environments have moved on."""
    ahead = before._replace(actors=now.actors, key=now.key, store=())
    return choose(before.iteration < 0, ahead, now._replace(store=()))._replace(store=now.store)


def group_of(num_envs: int, groups: int) -> Int[Array, " env"]:
    """The group of every environment."""
    return jnp.arange(num_envs) // (num_envs // groups)


def reset_period(env: Environment, steps: int, chunk: int) -> int:
    """Episodes can only end at multiples of so many steps: those of an iteration, of a chunk, or 1."""
    if not env.fixed_length:
        return 1
    return next((period for period in (steps, chunk) if env.horizon % period == 0), 1)


def collect(
    env: Environment,
    act: Act,
    actors: Actors,
    xs: tuple[Float[Array, "time env action"], Tree, Int[Array, " time"]],
    chunk: int,
    period: int,
    fresh: Fresh,
) -> tuple[Actors, Float[Array, "time env row"], Memory]:
    """Steps with this noise and these resets: the actors after them, rows, and the memory at the start of every chunk.

    Episodes are begun anew after every step (period 1), after every chunk, or here not at all (period 0).
    """

    def step(actors: Actors, x: tuple[Array, Tree, Array]) -> tuple[Actors, Array]:
        after, ended, row = step_all(env, act, actors, x[0])
        return auto_reset(after, ended, fresh(x[1])) if period == 1 else after, row

    def run_chunk(actors: Actors, xs: tuple[Array, Tree, Array]) -> tuple[Actors, tuple[Array, Memory]]:
        memory = actors.memory
        actors, rows = jax.lax.scan(step, actors, xs)
        if period == chunk > 1:
            ended = jnp.broadcast_to((xs[2][-1] + 1) % env.horizon == 0, actors.episode_return.shape)
            actors = auto_reset(actors, ended, fresh(xs[1][-1]))
        return actors, (rows, memory)

    chunked = jax.tree.map(lambda x: x.reshape(-1, chunk, *x.shape[1:]), xs)
    actors, (rows, memory) = jax.lax.scan(run_chunk, actors, chunked)
    return actors, rows.reshape(-1, *rows.shape[2:]), memory


def step_all(
    env: Environment, act: Act, actors: Actors, noise: Array
) -> tuple[Actors, Bool[Array, " env"], Float[Array, "env row"]]:
    """One step of all environments: the actors after it, whose episode it ended, and its row."""
    action, memory = act(actors.inputs, actors.memory, noise)
    env_state, out = jax.vmap(env.step)(actors.env_state, action)
    cost = out.cost.reshape(-1, len(env.costs))
    inputs = actors.inputs.after(out.obs, action, out.reward, cost)
    total = actors.episode_return + out.reward
    after = Actors(env_state, inputs, memory, total)
    ends = out.terminated, out.truncated
    row = pack(Record(actors.inputs.obs, out.obs, action, out.reward, cost, *ends, total, inputs.spent, inputs.asked))
    return after, out.terminated | out.truncated, row


def auto_reset(actors: Actors, ended: Bool[Array, " env"], fresh: tuple[Tree, Float[Array, "env obs"]]) -> Actors:
    """Actors whose episode has ended begin the fresh one, with nothing remembered of the last."""
    empty = jax.tree.map(jnp.zeros_like, actors)
    begun = empty._replace(env_state=fresh[0], inputs=empty.inputs._replace(obs=fresh[1], asked=drawn(None, fresh[0])))
    return jax.tree.map(lambda new, old: jnp.where(_expand(ended, new), new, old), begun, actors)


def _expand(mask: Array, like: Array) -> Array:
    return mask.reshape(mask.shape + (1,) * (like.ndim - 1))


def plan_resets(env: Environment, key: Array, steps: int, num_envs: int, before: Array) -> tuple[Fresh, Tree]:
    """A function that gives fresh episodes for all environments, and its argument for every step."""
    if not env.fixed_length:
        return jax.vmap(env.reset), jax.random.split(key, (steps, num_envs))
    # All environments end together, at the multiples of the horizon.
    count = -(-steps // env.horizon)
    drawn = jax.vmap(jax.vmap(env.reset))(jax.random.split(key, (count, num_envs)))
    index = (before + jnp.arange(steps)) // env.horizon - before // env.horizon
    return lambda which: jax.tree.map(lambda x: x[which], drawn), index


def tiled(fresh: tuple[Tree, Array], groups: int) -> tuple[Tree, Array]:
    """Fresh episodes for one group of environments, offered to every group."""
    return fresh if groups == 1 else jax.tree.map(lambda x: jnp.concatenate([x] * groups), fresh)


def finished_episodes(
    env: Environment, rows: Float[Array, "time env row"], before: Array, num_envs: int, groups: int
) -> Episodes:
    """The episodes that end in these rows, which follow `before` earlier steps of each environment."""
    record, steps = unpack(env, rows), rows.shape[0]
    time = before + 1 + jnp.arange(steps, dtype=jnp.int32)[:, None]
    env_steps = jnp.broadcast_to(time * num_envs, record.ended.shape)
    episodes = Episodes(record.ended, env_steps, record.episode_return, record.episode_cost, record.asked)
    if env.fixed_length:
        # Only the steps that are a multiple of the horizon, in a fixed number of rows.
        phase = before % (env.horizon // groups)
        last = jnp.arange(-(-steps // env.horizon)) * env.horizon + (env.horizon // groups - 1 - phase)
        episodes = jax.tree.map(lambda x: x[jnp.minimum(last, steps - 1)], episodes)
        episodes = episodes._replace(finished=episodes.finished & (last < steps)[:, None])
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), episodes)
