"""Gymnasium's API over both engines. Importing this module registers the environments under `qcrl/`.

Every step reports `info["cost"]` and, per kind of object that costs, `info["cost_hazards"]` and the like; tasks also
report `info["cost_energy"]`.
Neither JAX nor MuJoCo is imported before an environment is made that needs it.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from qcrl.envs import ENVIRONMENT_IDS
from qcrl.envs.adapters.gym_spaces import FRAMES_PER_SECOND, TRAIL, check_action, check_options, spaces
from qcrl.envs.host.costs import Info
from qcrl.envs.point import pictures as render
from qcrl.envs.point.outcome import Outcome
from qcrl.envs.point.tasks import TASKS
from qcrl.errors import UserError
from qcrl.kinds import Settings


class Engine(Protocol):
    """What an environment steps: a `MujocoEngine` or a `JaxEngine`."""

    def reset(self, rng: np.random.Generator) -> np.ndarray: ...

    def step(self, action: np.ndarray) -> Outcome: ...

    def scene(self) -> render.Scene | render.TwoPathScene: ...


class GymEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One environment. Its own time limit truncates; actions outside [-1, 1] are clipped."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": FRAMES_PER_SECOND}

    def __init__(
        self,
        env_id: str,
        engine: str,
        render_mode: str | None = None,
        renderer: str = "top_down",
        size: int = 400,
        watch: Callable[[render.Scene | render.TwoPathScene], None] | None = None,
    ):
        """`renderer` may be "mujoco" on that engine, where OpenGL works; pictures are `size` pixels wide.

        watch: is shown what the task looks like at the start of an episode and after every step.
        """
        check_options(env_id, engine, render_mode)
        if renderer not in ("top_down", "mujoco"):
            raise UserError(f"renderer is {renderer!r}; choose 'top_down' or 'mujoco'")
        if renderer == "mujoco" and engine != "mujoco":
            raise UserError("renderer='mujoco' needs engine='mujoco'; 'top_down' works with both engines")
        self.observation_space, self.action_space = spaces(env_id)
        self.engine = _make_engine(env_id, engine)
        self.render_mode = render_mode
        self._renderer, self._size = renderer, size
        self._watch = watch
        self._trail: deque[np.ndarray] = deque(maxlen=TRAIL)
        self._camera: Callable[[], np.ndarray] | None = None

    def reset(self, *, seed: int | None = None, options: Settings | None = None) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        self._trail.clear()
        obs = self.engine.reset(self.np_random).astype(np.float32)
        if self._watch is not None:
            self._watch(self.engine.scene())
        return obs, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, Info]:
        outcome = self.engine.step(check_action(action, self.action_space))
        if self._watch is not None:
            self._watch(self.engine.scene())
        info = {gym_key(name): cost for name, cost in outcome.costs.items()}
        return outcome.obs.astype(np.float32), outcome.reward, outcome.terminated, outcome.truncated, info

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        if self.render_mode is None:
            return None
        if self._renderer == "mujoco":
            self._camera = self._camera or render.open_camera(self.engine, self._size)
            return self._camera()
        scene = self.engine.scene()
        if isinstance(scene, render.Scene):
            self._trail.append(scene.robot)
        return render.draw(scene, self._size, self._trail)


def gym_key(cost: str) -> str:
    """The key of `info` that has this cost of a task."""
    return cost if cost == "cost" else f"cost_{cost}"


def make_vector(
    env_id: str, engine: str, num_envs: int = 1, render_mode: str | None = None, **options: Any
) -> VectorEnv:
    """`num_envs` environments at once, autoreset on the next step: one compiled batch, or MuJoCo in turn."""
    check_options(env_id, engine, render_mode)
    if num_envs < 1:
        raise UserError(f"num_envs is {num_envs}; give 1 or more")
    if engine == "jax":
        from qcrl.envs.adapters.gym_jax import JaxVectorEnv

        return JaxVectorEnv(env_id, num_envs, render_mode, **options)
    make = partial(gymnasium.make, f"qcrl/{env_id}", engine=engine, render_mode=render_mode, **options)
    return SyncVectorEnv([make] * num_envs)


def register_all() -> None:
    """Makes the environments known to Gymnasium; a second call changes nothing."""
    for env_id in ENVIRONMENT_IDS:
        if f"qcrl/{env_id}" not in gymnasium.registry:
            gymnasium.register(
                id=f"qcrl/{env_id}",
                entry_point="qcrl.envs.adapters.gym:GymEnv",
                vector_entry_point="qcrl.envs.adapters.gym:make_vector",
                kwargs={"env_id": env_id, "engine": "mujoco" if env_id in TASKS else "jax"},
            )


def _make_engine(env_id: str, engine: str) -> Engine:
    if engine == "jax":
        from qcrl.envs.adapters.gym_jax import JaxEngine

        return JaxEngine(env_id)
    from qcrl.envs.point.mujoco_engine import MujocoEngine

    return MujocoEngine(TASKS[env_id])


register_all()
