"""Rollouts in host environments: the policy acts on the CPU, the learner gets the arrays that a rollout on the device gives.

Batches have a fixed shape and hold only real steps. In a vector environment that spends steps on resets, the columns fill
at different times; steps of those that are full already count for their episodes, but are not learned from.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qcrl import rollout
from qcrl.algos import Metrics
from qcrl.algos.ppo import PPO
from qcrl.envs.base import Environment
from qcrl.envs.fleet import Fleet, Outcome
from qcrl.envs.host import Host
from qcrl.errors import UserError
from qcrl.lstm import Memory
from qcrl.networks import Inputs, only_heads
from qcrl.rollout import Actors, Episodes


def fit(algorithm: Any, env: Environment | Host, given: dict[str, Any]) -> Any:
    """The algorithm with as many environments as there are, and then with as many steps as before in a batch."""
    if not isinstance(algorithm, PPO):
        if isinstance(env, Host) or getattr(env, "discrete", False):
            why = "runs in Python" if isinstance(env, Host) else "has discrete actions"
            raise UserError(
                f"{type(algorithm).__name__} cannot be trained on {env.id}, which {why}, only on JAX environments whose "
                "actions are numbers; use qcpo or ppo_lag"
            )
        return algorithm
    count = env.num_envs if isinstance(env, Host) else None
    if count is None or count == algorithm.num_envs:
        return algorithm
    if "num_envs" in given:
        raise UserError(
            f"num_envs is {algorithm.num_envs}, but {env.id} was given as an object that holds {count}; "
            "leave num_envs out, or give the function that makes one environment"
        )
    if "steps_per_env" in given:
        return replace(algorithm, num_envs=count)
    chunks = max(1, round(algorithm.steps_per_iteration / count / algorithm.chunk_length))
    return replace(algorithm, num_envs=count, steps_per_env=chunks * algorithm.chunk_length)


class HostRollout:
    """The environments of all lanes, side by side, and the compiled functions that act and learn."""

    def __init__(
        self, algorithm: Any, host: Host, fleet: Fleet, seeds: Sequence[int], first_iteration: int = 0
    ) -> None:
        """`seeds` are those of the lanes. A run that is resumed begins with fresh episodes."""
        self.algorithm = algorithm
        self.host = host
        self.fleet = fleet
        self.shape = (len(seeds), algorithm.num_envs)
        self.cpu = jax.local_devices(backend="cpu")[0]
        self.prepare = jax.jit(jax.vmap(self._prepare))
        self.act = jax.jit(jax.vmap(self._act))
        self.learn: Any = None
        """Set by `compile`."""
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
        self.memory = jax.tree.map(np.asarray, algorithm.network.initial_memory(*self.shape))
        self.finished: list[list[tuple[int, float, float]]] = [[] for _ in seeds]
        """Per lane, episodes that have ended and were not handed on yet: env_steps, return, cost."""

    def iterate(self, state: Any) -> tuple[Any, Metrics]:
        """One iteration of all lanes."""
        actor, normaliser, keys, words, env_steps = self.prepare(state)
        # Steps are too many and too small for an accelerator.
        policy = jax.device_put((actor, normaliser), self.cpu)
        start = self._actors(state)
        rows, memory = self.collect(policy, np.asarray(words), np.asarray(env_steps))
        episodes = self._episodes()
        single = Episodes(*episodes[:2], *(jnp.asarray(x, jnp.float32) for x in episodes[2:]))
        after, metrics = self.learn(state, start, rows, memory, self._actors(state), single, keys)
        return after, Metrics(metrics.scalars, episodes)

    def compile(self, shapes: Any) -> Any:
        """Compile the learner for a state of these shapes, and return what an iteration reports, by name."""
        algorithm, host = self.algorithm, self.host
        size = 2 * host.observation_size + host.action_size + 6
        rows = jax.ShapeDtypeStruct((self.shape[0], algorithm.steps_per_env, self.shape[1], size), jnp.float32)
        memory = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((self.shape[0], len(x), *self.shape[1:], x.shape[-1]), jnp.float32),
            self._blank_memory(),
        )
        kinds = (jnp.bool, jnp.int32, jnp.float32, jnp.float32)
        episodes = Episodes(
            *(jax.ShapeDtypeStruct((self.shape[0], algorithm.steps_per_iteration), kind) for kind in kinds)  # type: ignore[arg-type]
        )
        example = (shapes, shapes.actors, rows, memory, shapes.actors, episodes, shapes.key)
        self.learn = jax.jit(jax.vmap(self._learn)).lower(*example).compile()
        return jax.eval_shape(jax.vmap(self._learn), *example)[1].scalars

    def collect(
        self, policy: Any, words: np.ndarray, env_steps: np.ndarray
    ) -> tuple[Float[np.ndarray, "lane time env row"], Memory]:
        """`steps_per_env` real steps of every environment, as rows for `rollout.unpack`, and the memory at chunk starts."""
        algorithm = self.algorithm
        steps, count = algorithm.steps_per_env, self.first.size
        noises = [np.random.default_rng(each) for each in words]
        size = (self.shape[1], self.host.action_size)
        rows: np.ndarray | None = None
        memories = self._blank_memory()
        taken = np.zeros(count, int)
        while taken.min() < steps:
            noise = np.stack([rng.standard_normal(size, np.float32) for rng in noises])
            packed = np.concatenate(
                [self.inputs.reshape(*self.shape, -1), noise, self.first.reshape(*self.shape, 1)], axis=2
            )
            action, before, self.memory = self.act(*policy, packed, self.memory)
            if algorithm.lstm_size:
                _keep(memories, before, taken, algorithm.chunk_length)
            chosen = np.asarray(action).reshape(count, -1)
            outcome = self.fleet.step(self.host.actions.to_env(chosen))
            row = self._row(chosen, outcome)
            if rows is None:
                rows = np.empty((steps, count, row.shape[1]), np.float32)
            place = np.flatnonzero(outcome.real & (taken < steps))
            rows[taken[place], place] = row[place]
            taken[place] += 1
            self._close_episodes(outcome, taken, env_steps)
            self._go_on(chosen, outcome)
        assert rows is not None
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

    def _blank_memory(self) -> Memory:
        chunks = self.algorithm.steps_per_env // self.algorithm.chunk_length
        return jax.tree.map(
            lambda x: np.zeros((chunks, self.first.size, x.shape[-1]), np.float32),
            self.algorithm.network.initial_memory(1),
        )

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
        actor = self.algorithm.computing(only_heads(state.params, self.host.action_size))
        return actor, state.normaliser, key, rollout_key, state.env_steps

    def _act(self, actor: Any, normaliser: Any, packed: Float[Array, "env row"], memory: Memory) -> tuple[Any, ...]:
        """Actions, and the memory before and after them."""
        sizes = [self.host.observation_size, self.host.action_size, 1, 1, self.host.action_size]
        obs, action, reward, cost, noise, first = jnp.split(packed, np.cumsum(sizes), axis=1)
        memory = jax.tree.map(lambda x: jnp.where(first > 0, 0.0, x), memory)
        inputs = Inputs(obs, action, reward[:, 0], cost[:, 0])
        action, after = self.algorithm.sample(actor, normaliser, inputs, memory, noise)
        return action, memory, after

    def _learn(
        self, state: Any, start: Actors, rows: Array, memory: Memory, actors: Actors, episodes: Episodes, key: Array
    ) -> tuple[Any, Metrics]:
        with self.algorithm.precision():
            trajectory, _ = rollout.unpack(self.host, start, rows, memory)  # type: ignore[arg-type]
            return self.algorithm.learn(state, actors, trajectory, episodes, key)


def _keep(memories: Memory, before: Memory, taken: np.ndarray, chunk: int) -> None:
    """Store the memory of the environments that are at the start of a chunk."""
    place = np.flatnonzero((taken % chunk == 0) & (taken // chunk < memories.hidden.shape[0]))
    if place.size:
        for kept, now in zip(memories, before):
            kept[taken[place] // chunk, place] = np.asarray(now).reshape(taken.size, -1)[place]
