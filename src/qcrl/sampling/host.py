"""Sampling in environments that run in Python: the policy acts on the CPU, the learner gets what the device would give.

Batches have a fixed shape and hold only real steps. In a vector environment that spends steps on resets, the columns
fill at different times; steps of those that are full already count for their episodes, but are not learned from.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qcrl.envs.drawing import DRAWN
from qcrl.envs.host.environment import HostEnv
from qcrl.envs.host.fleet import Fleet, Outcome
from qcrl.kinds import Tree
from qcrl.nets.network import Inputs, Memory
from qcrl.sampling.learner import Learner, Scalars
from qcrl.sampling.record import Actors, Episodes, Experience, Metrics, Record, State, pack, row_size


class Watch(NamedTuple):
    """Who looks on while an iteration is sampled."""

    tick: Callable[[float], None] = lambda share: None
    """Is told which share of the iteration is done, after every step of all environments."""
    breakable: Callable[[], AbstractContextManager[object]] = nullcontext
    """Entered while environments are stepped: only there may sampling be broken off."""


class HostSampler:
    """The environments of all lanes, side by side, and the compiled functions that act and learn."""

    def __init__(
        self,
        learner: Learner,
        env: HostEnv,
        fleet: Fleet,
        seeds: Sequence[int],
        first_iteration: int = 0,
        watch: Watch = Watch(),  # noqa: B008
        restarts: Callable[[], int] | None = None,
    ) -> None:
        """`seeds` are those of the lanes. A run that is resumed begins with fresh episodes."""
        self.watch = watch
        self.restarts = restarts
        """How often environments were made anew, where that is reported."""
        self.learner = learner
        self.env = env
        self.fleet = fleet
        self.blocks = learner.steps_per_env // learner.block_length
        self.interval = learner.memory_interval(env)
        self.shape = (len(seeds), learner.num_envs)
        self.cpu = jax.local_devices(backend="cpu")[0]
        self.prepare = jax.jit(jax.vmap(self._prepare))
        self.act = jax.jit(jax.vmap(self._act))
        self.learn: Any = None
        self.finish: Any = None
        """Set by `compile`, the latter only where an iteration is several blocks."""
        count = len(seeds) * learner.num_envs
        drawn = [
            np.random.SeedSequence([seed, first_iteration, place]).generate_state(1)[0] >> 1
            for seed in seeds
            for place in range(learner.num_envs)
        ]
        self.sizes = [env.observation_size, env.action_size, 1, len(env.costs), len(env.costs), 1, DRAWN * env.draws]
        """Of what is known before a step, as `Inputs` has it."""
        self.inputs = np.zeros((count, sum(self.sizes)), np.float32)
        self.inputs[:, : env.observation_size] = fleet.reset([int(seed) for seed in drawn])
        self.random = np.random.default_rng([int(seed) for seed in drawn])
        self.asked = self.random.random((count, self.sizes[-1]))
        """What the running episodes have drawn, where they do."""
        self.inputs[:, sum(self.sizes[:-1]) :] = self.asked
        self.first = np.ones(count, bool)
        self.totals = np.zeros((count, 1 + len(env.costs)))
        """Return and costs of the running episodes, summed in double precision."""
        self.time = np.zeros(count)
        self.memory = jax.tree.map(lambda x: np.zeros((*self.shape, *x.shape), np.float32), self._nothing())
        self.finished: list[list[tuple[int, list[float]]]] = [[] for _ in seeds]
        """Per lane, episodes that have ended and were not handed on yet: env_steps, and return and costs."""

    def iterate(self, state: State) -> tuple[State, Metrics]:
        """One iteration of all lanes."""
        # Blocks overwrite it, but what was before the iteration must outlive a step that fails.
        now = jax.tree.map(jnp.copy, state) if self.blocks > 1 else state
        ended: list[Episodes] = []
        for block in range(self.blocks):
            start = self._actors(state)
            actor, keys, words, env_steps = self.prepare(now)
            # Steps are too many and too small for an accelerator.
            actor = jax.device_put(actor, self.cpu)
            with self.watch.breakable():
                rows, memory = self.collect(actor, np.asarray(words), np.asarray(env_steps), block)
            ended.append(self._episodes())
            experience = Experience(rows, start, _single(ended[-1]), memory)  # type: ignore[arg-type]
            now, outcome = self.learn(now, self._actors(state), experience, keys)
        episodes = jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *ended)
        if self.blocks > 1:
            now, outcome = self.finish(state, now, _single(episodes), outcome)
        return now, Metrics(outcome.scalars | self._report(), episodes)

    def _report(self) -> Scalars:
        return {} if self.restarts is None else {"restarts": jnp.full(self.shape[0], self.restarts(), jnp.float32)}

    def compile(self, shapes: State) -> Scalars:
        """Compile the learner for a state of these shapes, and return what an iteration reports, by name."""
        lanes, num_envs = self.shape
        length = self.learner.block_length
        rows = jax.ShapeDtypeStruct((lanes, length, num_envs, row_size(self.env)), jnp.float32)
        memory = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((lanes, len(x), num_envs, x.shape[-1]), jnp.float32), self._blank_memory()
        )

        def shaped(capacity: int) -> Episodes:
            sizes = ((), (), (), (len(self.env.costs),), *([(DRAWN,)] if self.env.draws else []))
            kinds = (jnp.bool, jnp.int32, jnp.float32, jnp.float32, jnp.float32)
            columns = (jax.ShapeDtypeStruct((lanes, capacity, *size), kind) for size, kind in zip(sizes, kinds))
            return Episodes(*columns)  # type: ignore[arg-type]

        experience = Experience(rows, shapes.actors, shaped(length * num_envs), memory)  # type: ignore[arg-type]
        example = (shapes, shapes.actors, experience, shapes.key)
        # The state that blocks have led to is a copy, and no longer needed.
        learn = jax.jit(jax.vmap(self._learn), donate_argnums=0 if self.blocks > 1 else ())
        self.learn = learn.lower(*example).compile()
        outcome = jax.eval_shape(learn, *example)[1]
        if self.blocks > 1:
            finish = jax.jit(jax.vmap(self._finish), donate_argnums=1)
            ends = (shapes, shapes, shaped(length * num_envs * self.blocks), outcome)
            self.finish = finish.lower(*ends).compile()
            outcome = jax.eval_shape(finish, *ends)[1]
        return outcome.scalars | self._report()

    def collect(
        self, actor: Tree, words: np.ndarray, env_steps: np.ndarray, block: int = 0
    ) -> tuple[Float[np.ndarray, "lane time env row"], Memory]:
        """A block of real steps of every environment, as rows, and the memory at chunk starts."""
        steps, count = self.learner.block_length, self.first.size
        noises = [np.random.default_rng(each) for each in words]
        size = (self.shape[1], self.env.action_size)
        rows = np.empty((steps, count, row_size(self.env)), np.float32)
        memories = self._blank_memory()
        taken = np.zeros(count, int)
        while taken.min() < steps:
            noise = np.stack([rng.standard_normal(size, np.float32) for rng in noises])
            packed = np.concatenate(
                [self.inputs.reshape(*self.shape, -1), noise, self.first.reshape(*self.shape, 1)], axis=2
            )
            action, before, self.memory = self.act(actor, packed, self.memory)
            if jax.tree.leaves(memories):
                _keep(memories, before, taken, self.interval)
            chosen = np.asarray(action).reshape(count, -1)
            outcome = self.fleet.step(self.env.actions.to_env(chosen))
            row = self._row(chosen, outcome)
            place = np.flatnonzero(outcome.real & (taken < steps))
            rows[taken[place], place] = row[place]
            taken[place] += 1
            self._close_episodes(outcome, taken, env_steps)
            self._go_on(chosen, outcome)
            self.watch.tick((block + taken.min() / steps) / self.blocks)
        by_lane = lambda x: np.ascontiguousarray(np.swapaxes(x.reshape(len(x), *self.shape, -1), 0, 1))
        return by_lane(rows), jax.tree.map(by_lane, memories)

    def _row(self, action: np.ndarray, outcome: Outcome) -> Float[np.ndarray, "env row"]:
        gained = np.column_stack([outcome.reward, outcome.cost])
        self.totals += np.where(outcome.real[:, None], gained, 0.0)
        self.time += outcome.real
        obs = self.inputs[:, : self.env.observation_size]
        ends = outcome.terminated, outcome.truncated
        parts: list[Any] = [obs, outcome.next_obs, action, outcome.reward, outcome.cost, *ends]
        parts += [self.totals[:, 0], self.totals[:, 1:], self.asked if self.env.draws else ()]
        return np.asarray(pack(Record(*parts), np))

    def _close_episodes(self, outcome: Outcome, taken: np.ndarray, env_steps: np.ndarray) -> None:
        for place in np.flatnonzero(outcome.ended):
            lane = place // self.shape[1]
            steps = int(env_steps[lane]) + int(taken[place]) * self.shape[1]
            self.finished[lane].append((steps, [*self.totals[place].tolist(), *self.asked[place].tolist()]))
            self.totals[place] = self.time[place] = 0.0

    def _go_on(self, action: np.ndarray, outcome: Outcome) -> None:
        self.first = outcome.ended | ~outcome.real
        known = np.column_stack([action, outcome.reward, outcome.cost, self.totals[:, 1:], self.time])
        known[self.first] = 0.0
        if self.env.draws:
            self.asked = np.where(self.first[:, None], self.random.random(self.asked.shape), self.asked)
        self.inputs = np.concatenate([outcome.obs, known, self.asked], axis=1, dtype=np.float32)

    def _nothing(self) -> Memory:
        """What an actor remembers before its first step."""
        return self.learner.initial_memory(self.env)

    def _blank_memory(self) -> Memory:
        chunks = self.learner.block_length // self.interval
        return jax.tree.map(lambda x: np.zeros((chunks, self.first.size, *x.shape), np.float32), self._nothing())

    def _actors(self, state: State) -> Actors:
        """Where the environments are, as the learner and checkpoints have it."""
        split = lambda x: x.reshape(*self.shape, *x.shape[1:])
        total = split(self.totals[:, 0].astype(np.float32))
        return Actors(state.actors.env_state, self._read(split(self.inputs), np), self.memory, total)

    def _read(self, known: Any, xp: Any) -> Inputs:
        """What is known before a step, taken apart."""
        obs, action, reward, cost, spent, time, asked, *_ = xp.split(known, np.cumsum(self.sizes), axis=-1)
        return Inputs(obs, action, reward[..., 0], cost, spent, time[..., 0], asked if self.env.draws else ())

    def _episodes(self) -> Episodes:
        """The finished episodes, as many as there is room for; the rest comes later."""
        lanes, capacity = self.shape[0], self.shape[1] * self.learner.block_length
        finished, env_steps = np.zeros((lanes, capacity), bool), np.zeros((lanes, capacity), np.int32)
        costs = self.totals.shape[1]
        totals = np.zeros((lanes, capacity, costs + self.asked.shape[1]))
        for lane, waiting in enumerate(self.finished):
            ready, self.finished[lane] = waiting[:capacity], waiting[capacity:]
            finished[lane, : len(ready)] = True
            for place, (steps, sums) in enumerate(ready):
                env_steps[lane, place], totals[lane, place] = steps, sums
        drawn = totals[..., costs:] if self.env.draws else ()
        return Episodes(finished, env_steps, totals[..., 0], totals[..., 1:costs], drawn)  # type: ignore[arg-type]

    def _prepare(self, state: State) -> tuple[Tree, ...]:
        key, rollout_key = jax.random.split(state.key)
        return self.learner.actor(self.env, state), key, rollout_key, state.env_steps

    def _act(self, actor: Tree, packed: Float[Array, "env row"], memory: Memory) -> tuple[Tree, ...]:
        """Actions, and the memory before and after them."""
        known = sum(self.sizes)
        noise, first = packed[:, known:-1], packed[:, -1:]
        memory = jax.tree.map(lambda x: jnp.where(first > 0, 0.0, x), memory)
        action, after = self.learner.sample(self.env, actor, self._read(packed[:, :known], jnp), memory, noise)
        return action, memory, after

    def _learn(self, state: State, actors: Actors, experience: Experience, key: Array) -> tuple[State, Tree]:
        """From one block; where an iteration is one block, to its end."""
        with self.learner.precision():
            steps = state.env_steps + self.learner.block_length * self.learner.num_envs
            now = state._replace(actors=actors, key=key, env_steps=steps)
            if self.blocks > 1:
                after, scalars = self.learner.learn(self.env, now, experience)
                return after, Metrics(scalars, experience.episodes)
            now = now._replace(window=now.window.add(experience.episodes))
            after, scalars = self.learner.learn(self.env, now, experience)
            return self.learner.finish(self.env, state, after, experience.episodes, scalars)

    def _finish(self, before: State, now: State, episodes: Episodes, outcome: Metrics) -> tuple[State, Metrics]:
        with self.learner.precision():
            now = now._replace(window=before.window.add(episodes))
            return self.learner.finish(self.env, before, now, episodes, outcome.scalars)


def _single(episodes: Episodes) -> Episodes:
    """In the precision that learners compute in."""
    return Episodes(*episodes[:2], *jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tuple(episodes[2:])))


def _keep(memories: Memory, before: Memory, taken: np.ndarray, interval: int) -> None:
    """Store the memory of the environments that are at the start of a chunk."""
    stored = list(zip(jax.tree.leaves(memories), jax.tree.leaves(before)))
    place = np.flatnonzero((taken % interval == 0) & (taken // interval < len(stored[0][0])))
    if place.size:
        for kept, now in stored:
            kept[taken[place] // interval, place] = np.asarray(now).reshape(taken.size, -1)[place]
