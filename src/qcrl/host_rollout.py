"""Rollouts in host environments: the policy acts on the CPU, the learner gets the arrays that a rollout on the device gives.

Batches have a fixed shape and hold only real steps. In a vector environment that spends steps on resets, the columns fill
at different times; steps of those that are full already count for their episodes, but are not learned from.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qcrl import rollout
from qcrl.algos import Metrics
from qcrl.algos.cvar_pg import CVaRPG
from qcrl.algos.ppo import PPO
from qcrl.algos.sac import SAC
from qcrl.envs.base import Environment
from qcrl.envs.fleet import Fleet, Outcome
from qcrl.envs.host import Host
from qcrl.errors import UserError
from qcrl.networks import Inputs, Memory
from qcrl.rollout import Actors, Episodes


def fit(algorithm: Any, env: Environment | Host, given: dict[str, Any]) -> Any:
    """The algorithm with as many environments as there are, and then with about as many steps as before in a batch."""
    name, soft, own = type(algorithm).__name__, isinstance(algorithm, SAC), isinstance(algorithm, PPO | CVaRPG | SAC)
    if soft and getattr(env, "discrete", False):
        raise UserError(
            f"{name} cannot be trained on {env.id}, which has discrete actions, only on actions that are numbers; "
            "use qcpo, ppo_lag or cvar_pg"
        )
    if not isinstance(env, Host):
        return algorithm
    if not own:
        raise UserError(f"{name} cannot be trained on {env.id}, which runs in Python, only on JAX environments")
    count = env.num_envs
    if count is None or count == algorithm.num_envs:
        return algorithm
    if "num_envs" in given:
        raise UserError(
            f"num_envs is {algorithm.num_envs}, but {env.id} was given as an object that holds {count}; "
            "leave num_envs out, or give the function that makes one environment"
        )
    changed, length = {"num_envs": count}, getattr(algorithm, "chunk_length", 1)
    if soft:
        least = algorithm.steps_per_update // math.gcd(count, algorithm.steps_per_update)
        length = changed["block_length"] = given.get("block_length", _multiple(algorithm.block / count, least))
    if "steps_per_env" not in given:
        changed["steps_per_env"] = _multiple(algorithm.steps_per_iteration / count, length)
    return replace(algorithm, **changed)


def _multiple(number: float, unit: int) -> int:
    """The multiple of the unit that is nearest."""
    return unit * max(1, round(number / unit))


class HostRollout:
    """The environments of all lanes, side by side, and the compiled functions that act and learn."""

    def __init__(
        self, algorithm: Any, host: Host, fleet: Fleet, seeds: Sequence[int], first_iteration: int = 0
    ) -> None:
        """`seeds` are those of the lanes. A run that is resumed begins with fresh episodes."""
        self.algorithm = algorithm
        self.host = host
        self.fleet = fleet
        self.soft = isinstance(algorithm, SAC)
        self.length = algorithm.block_length if self.soft else algorithm.steps_per_env
        """Steps of each environment that are taken with the same policy."""
        self.shape = (len(seeds), algorithm.num_envs)
        self.row_size = 2 * host.observation_size + host.action_size + 6
        self.cpu = jax.local_devices(backend="cpu")[0]
        self.prepare = jax.jit(jax.vmap(self._prepare))
        self.act = jax.jit(jax.vmap(self._act))
        self.learn_block: Any = None
        self.learn: Any = None
        """Set by `compile`, the first one for off-policy algorithms only."""
        count = len(seeds) * algorithm.num_envs
        drawn = [
            np.random.SeedSequence([seed, first_iteration, place]).generate_state(1)[0] >> 1
            for seed in seeds
            for place in range(algorithm.num_envs)
        ]
        self.inputs = np.zeros((count, host.observation_size + host.action_size + 2), np.float32)
        """Observation, previous action, reward and cost."""
        self.inputs[:, : host.observation_size] = fleet.reset([int(seed) for seed in drawn])
        self.first = np.ones(count, bool)
        self.totals = np.zeros((2, count))
        """Return and cost of the running episodes, summed in double precision."""
        self.memory = jax.tree.map(lambda x: np.zeros((*self.shape, *x.shape), np.float32), self._nothing())
        self.finished: list[list[tuple[int, float, float]]] = [[] for _ in seeds]
        """Per lane, episodes that have ended and were not handed on yet: env_steps, return, cost."""

    def iterate(self, state: Any) -> tuple[Any, Metrics]:
        """One iteration of all lanes."""
        start = self._actors(state)
        # Blocks overwrite it, but what was before the iteration must outlive a step that fails.
        now = jax.tree.map(jnp.copy, state) if self.soft else state
        for _ in range(self.algorithm.steps_per_env // self.length):
            actor, keys, words, env_steps = self.prepare(now)
            # Steps are too many and too small for an accelerator.
            actor = jax.device_put(actor, self.cpu)
            rows, memory = self.collect(actor, np.asarray(words), np.asarray(env_steps))
            if self.soft:
                now = self.learn_block(now, rows, keys)
        episodes = self._episodes()
        single = Episodes(*episodes[:2], *(jnp.asarray(x, jnp.float32) for x in episodes[2:]))
        after, metrics = self.learn(state, now, start, rows, memory, self._actors(state), single, keys)
        return after, Metrics(metrics.scalars, episodes)

    def compile(self, shapes: Any) -> Any:
        """Compile the learner for a state of these shapes, and return what an iteration reports, by name."""
        rows = jax.ShapeDtypeStruct((self.shape[0], self.length, self.shape[1], self.row_size), jnp.float32)
        memory = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((self.shape[0], len(x), *self.shape[1:], x.shape[-1]), jnp.float32),
            self._blank_memory(),
        )
        kinds = (jnp.bool, jnp.int32, jnp.float32, jnp.float32)
        capacity = self.shape[0], self.algorithm.steps_per_iteration
        episodes = Episodes(*(jax.ShapeDtypeStruct(capacity, kind) for kind in kinds))  # type: ignore[arg-type]
        example = (shapes, shapes, shapes.actors, rows, memory, shapes.actors, episodes, shapes.key)
        if self.soft:
            blockwise = jax.jit(jax.vmap(self._learn_block), donate_argnums=0)
            self.learn_block = blockwise.lower(shapes, rows, shapes.key).compile()
        # The state that blocks have led to is a copy, and no longer needed.
        learn = jax.jit(jax.vmap(self._learn), donate_argnums=1 if self.soft else ())
        self.learn = learn.lower(*example).compile()
        return jax.eval_shape(learn, *example)[1].scalars

    def collect(
        self, policy: Any, words: np.ndarray, env_steps: np.ndarray
    ) -> tuple[Float[np.ndarray, "lane time env row"], Memory]:
        """`length` real steps of every environment, as rows for `rollout.unpack`, and the memory at chunk starts."""
        steps, count = self.length, self.first.size
        noises = [np.random.default_rng(each) for each in words]
        size = (self.shape[1], self.host.action_size)
        rows = np.empty((steps, count, self.row_size), np.float32)
        memories = self._blank_memory()
        taken = np.zeros(count, int)
        while taken.min() < steps:
            noise = np.stack([rng.standard_normal(size, np.float32) for rng in noises])
            packed = np.concatenate(
                [self.inputs.reshape(*self.shape, -1), noise, self.first.reshape(*self.shape, 1)], axis=2
            )
            action, before, self.memory = self.act(policy, packed, self.memory)
            if jax.tree.leaves(memories):
                _keep(memories, before, taken, self.algorithm.chunk_length)
            chosen = np.asarray(action).reshape(count, -1)
            outcome = self.fleet.step(self.host.actions.to_env(chosen))
            row = self._row(chosen, outcome)
            place = np.flatnonzero(outcome.real & (taken < steps))
            rows[taken[place], place] = row[place]
            taken[place] += 1
            self._close_episodes(outcome, taken, env_steps)
            self._go_on(chosen, outcome)
        by_lane = lambda x: np.ascontiguousarray(np.swapaxes(x.reshape(len(x), *self.shape, -1), 0, 1))
        return by_lane(rows), jax.tree.map(by_lane, memories)

    def _row(self, action: np.ndarray, outcome: Outcome) -> Float[np.ndarray, "env row"]:
        """What `rollout.unpack` reads."""
        self.totals += np.where(outcome.real, (outcome.reward, outcome.cost), 0.0)
        numbers = (outcome.reward, outcome.cost, outcome.terminated, outcome.truncated, *self.totals)
        obs = self.inputs[:, : self.host.observation_size]
        return np.concatenate([obs, outcome.next_obs, action, np.stack(numbers, axis=1)], axis=1)

    def _close_episodes(self, outcome: Outcome, taken: np.ndarray, env_steps: np.ndarray) -> None:
        for place in np.flatnonzero(outcome.ended):
            lane = place // self.shape[1]
            steps = int(env_steps[lane]) + int(taken[place]) * self.shape[1]
            self.finished[lane].append((steps, *self.totals[:, place].tolist()))
            self.totals[:, place] = 0.0

    def _go_on(self, action: np.ndarray, outcome: Outcome) -> None:
        self.first = outcome.ended | ~outcome.real
        previous = np.column_stack([action, outcome.reward, outcome.cost])
        previous[self.first] = 0.0
        self.inputs = np.concatenate([outcome.obs, previous], axis=1, dtype=np.float32)

    def _nothing(self) -> Memory:
        """What an actor remembers before its first step."""
        return self.algorithm.initial_carry(self.host)

    def _blank_memory(self) -> Memory:
        chunks = self.length // getattr(self.algorithm, "chunk_length", self.length)
        return jax.tree.map(lambda x: np.zeros((chunks, self.first.size, *x.shape), np.float32), self._nothing())

    def _actors(self, state: Any) -> Actors:
        """Where the environments are, as the learner and checkpoints have it."""
        split = lambda x: x.reshape(*self.shape, *x.shape[1:])
        ends = np.cumsum([self.host.observation_size, self.host.action_size, 1])
        obs, action, reward, cost = np.split(split(self.inputs), ends, axis=-1)
        inputs = Inputs(*map(jnp.asarray, (obs, action, reward[..., 0], cost[..., 0])))
        totals = (split(total.astype(np.float32)) for total in self.totals)
        return Actors(state.actors.env_state, inputs, self.memory, split(self.first), *totals)

    def _episodes(self) -> Episodes:
        """The finished episodes, as many as there is room for; the rest comes with the next iteration."""
        capacity = self.algorithm.steps_per_iteration
        columns = Episodes(
            np.zeros((self.shape[0], capacity), bool),  # type: ignore[arg-type]
            np.zeros((self.shape[0], capacity), np.int32),  # type: ignore[arg-type]
            *np.zeros((2, self.shape[0], capacity)),  # type: ignore[arg-type]
        )
        for lane, waiting in enumerate(self.finished):
            ready, self.finished[lane] = waiting[:capacity], waiting[capacity:]
            columns.finished[lane, : len(ready)] = True  # type: ignore[index]
            for column, values in zip(columns[1:], zip(*ready)):
                column[lane, : len(ready)] = values
        return columns

    def _prepare(self, state: Any) -> tuple[Any, ...]:
        key, rollout_key = jax.random.split(state.key)
        return self.algorithm.actor(self.host, state), key, rollout_key, state.env_steps

    def _act(self, actor: Any, packed: Float[Array, "env row"], memory: Memory) -> tuple[Any, ...]:
        """Actions, and the memory before and after them."""
        sizes = [self.host.observation_size, self.host.action_size, 1, 1, self.host.action_size]
        obs, action, reward, cost, noise, first = jnp.split(packed, np.cumsum(sizes), axis=1)
        memory = jax.tree.map(lambda x: jnp.where(first > 0, 0.0, x), memory)
        inputs = Inputs(obs, action, reward[:, 0], cost[:, 0])
        action, after = self.algorithm.sample(*actor, inputs, memory, noise)
        return action, memory, after

    def _learn_block(self, state: Any, rows: Array, key: Array) -> Any:
        with self.algorithm.precision():
            key, learn_key = jax.random.split(key)
            return self.algorithm.learn_block(self.host, state, rows, learn_key)._replace(key=key)

    def _learn(
        self,
        state: Any,
        now: Any,
        start: Actors,
        rows: Array,
        memory: Memory,
        actors: Actors,
        episodes: Episodes,
        key: Array,
    ) -> tuple[Any, Metrics]:
        with self.algorithm.precision():
            if self.soft:
                key, report_key = jax.random.split(now.key)
                now = now._replace(actors=actors, key=key)
                return self.algorithm.finish(self.host, state, now, episodes, report_key)
            trajectory, _ = rollout.unpack(self.host, start, rows, memory)  # type: ignore[arg-type]
            return self.algorithm.learn(state, actors, trajectory, episodes, key)


def _keep(memories: Memory, before: Memory, taken: np.ndarray, chunk: int) -> None:
    """Store the memory of the environments that are at the start of a chunk."""
    stored = list(zip(jax.tree.leaves(memories), jax.tree.leaves(before)))
    place = np.flatnonzero((taken % chunk == 0) & (taken // chunk < len(stored[0][0])))
    if place.size:
        for kept, now in stored:
            kept[taken[place] // chunk, place] = np.asarray(now).reshape(taken.size, -1)[place]
