"""The functional environments behind Gymnasium's API, one at a time and as a compiled batch."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import ArrayLike

from qcrl.envs import make
from qcrl.envs.adapters.gym_spaces import FRAMES_PER_SECOND, check_action, spaces
from qcrl.envs.base import Environment
from qcrl.envs.host.costs import Info
from qcrl.envs.point import pictures as render
from qcrl.envs.point.outcome import Outcome
from qcrl.envs.point.tasks import ENERGY
from qcrl.envs.two_path import TwoPathEnv
from qcrl.errors import UserError
from qcrl.kinds import Settings, Tree


class Compiled(NamedTuple):
    """An environment and its jitted functions, for one and for a batch."""

    env: Environment
    reset: Callable[..., tuple[Tree, jax.Array]]
    step: Callable[..., tuple[Tree, Tree, dict[str, jax.Array]]]
    reset_all: Callable[..., tuple[Tree, jax.Array]]
    step_all: Callable[..., tuple[Tree, Tree, dict[str, jax.Array]]]
    choose: Callable[..., Tree]
    """choose(mask, new, old): per environment of a batch, one of two states."""


@cache
def compiled(env_id: str) -> Compiled:
    """Compiled once per process, however many environments are made."""
    env = make(env_id)

    def reset(seed):
        return env.reset(jax.random.key(seed))

    def step(state, action):
        state, step = env.step(state, action)
        return state, step, _sources(env, state, action)

    choose = jax.vmap(lambda mask, new, old: jax.tree.map(lambda a, b: jnp.where(mask, a, b), new, old))
    return Compiled(env, *(jax.jit(f) for f in (reset, step, jax.vmap(reset), jax.vmap(step), choose)))


class JaxEngine:
    """One functional environment with the interface of `MujocoEngine`."""

    def __init__(self, env_id: str):
        self._compiled = compiled(env_id)
        self.state: Tree = None

    def reset(self, rng: np.random.Generator) -> np.ndarray:
        self.state, obs = self._compiled.reset(_draw_seed(rng))
        return np.asarray(obs)

    def step(self, action: np.ndarray) -> Outcome:
        self.state, step, sources = self._compiled.step(self.state, action)
        step, sources = jax.device_get((step, sources))
        energy = sources.pop(ENERGY, None)
        return Outcome(
            step.obs,
            float(step.reward),
            float(step.cost),
            {kind: float(cost) for kind, cost in sources.items()},
            bool(step.terminated),
            bool(step.truncated),
            None if energy is None else float(energy),
        )

    def scene(self) -> render.Scene | render.TwoPathScene:
        return _scene(self._compiled.env, self.state)


class JaxVectorEnv(VectorEnv):
    """A compiled batch. The step after an episode's end ignores the action and starts the next episode.

    As in Gymnasium's own vector environments, a seed `s` gives environments `s`, `s + 1`, ... and each runs
    as it would alone; on a starting step there is no cost to report, `info["_cost"]` is false.
    """

    def __init__(self, env_id: str, num_envs: int, render_mode: str | None = None, size: int = 400):
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": FRAMES_PER_SECOND,
            "autoreset_mode": AutoresetMode.NEXT_STEP,
        }
        self.single_observation_space, self.single_action_space = spaces(env_id)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._compiled = compiled(env_id)
        self._size = size
        self._generators = [seeding.np_random()[0] for _ in range(num_envs)]
        self._state: Tree = None
        self._obs: jax.Array | None = None
        self._ended = np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Settings | None = None
    ) -> tuple[np.ndarray, Info]:
        """Starts all environments, or those in `options["reset_mask"]`."""
        mask = np.ones(self.num_envs, bool)
        if options and "reset_mask" in options and self._state is not None:
            mask = np.array(options["reset_mask"], bool)
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int | np.integer) else seed
        seeds = [None] * self.num_envs if seeds is None else seeds
        if len(seeds) != self.num_envs or mask.shape != (self.num_envs,):
            raise UserError(f"there are {self.num_envs} environments: give as many seeds and mask entries")
        for i, one in enumerate(seeds):
            if mask[i] and one is not None:
                self._generators[i] = seeding.np_random(one)[0]
        self._restart(mask)
        return np.array(self._obs, np.float32), {}

    def step(self, actions: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Info]:
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset() before the first step()")
        starting = self._ended
        actions = check_action(actions, self.action_space)
        self._state, step, sources = self._compiled.step_all(self._state, actions)
        self._obs = step.obs
        if starting.any():
            self._restart(starting)
        obs, step, sources = jax.device_get((self._obs, step, sources))
        reward = np.where(starting, 0.0, step.reward).astype(np.float64)
        terminated, truncated = step.terminated & ~starting, step.truncated & ~starting
        self._ended = terminated | truncated
        info = {}
        if not starting.all():
            for name, cost in {"cost": step.cost, **{f"cost_{k}": c for k, c in sources.items()}}.items():
                info[name] = np.where(starting, 0.0, cost).astype(np.float64)
                info[f"_{name}"] = ~starting
        return np.array(obs, np.float32), reward, terminated, truncated, info

    def render(self) -> tuple[np.ndarray, ...] | None:
        if self.render_mode is None:
            return None
        states = [jax.tree.map(lambda leaf, i=i: leaf[i], self._state) for i in range(self.num_envs)]
        return tuple(render.draw(_scene(self._compiled.env, state), self._size) for state in states)

    def _restart(self, mask: np.ndarray) -> None:
        seeds = np.array([_draw_seed(rng) if m else 0 for rng, m in zip(self._generators, mask)], np.uint32)
        fresh = self._compiled.reset_all(seeds)
        if self._state is not None:
            fresh = self._compiled.choose(mask, fresh, (self._state, self._obs))
        self._state, self._obs = fresh
        self._ended = self._ended & ~mask


def _draw_seed(rng: np.random.Generator) -> np.uint32:
    return rng.integers(2**32, dtype=np.uint32)


def _sources(env: Any, state: Tree, action: jax.Array) -> dict[str, jax.Array]:
    """The costs of the step that led here, but for the one that all kinds of objects share."""
    if isinstance(env, TwoPathEnv):
        return {}
    return {**env.sources(state), ENERGY: jnp.mean(jnp.square(jnp.clip(action, -1, 1)))}


def _scene(env: Any, state: Tree) -> render.Scene | render.TwoPathScene:
    if isinstance(env, TwoPathEnv):
        return render.TwoPathScene(int(state.route), int(state.position), env.length)
    return env.scene(state)
