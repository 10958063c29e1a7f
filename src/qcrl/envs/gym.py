"""Gymnasium's API over both engines. Importing this module registers the environments under `qcrl/`.

Every step reports `info["cost"]` and, per kind of object that costs, `info["cost_hazards"]` and the like.
Neither JAX nor MuJoCo is imported before an environment is made that needs it.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import SyncVectorEnv, VectorEnv

from qcrl.envs import ENVIRONMENT_IDS, render
from qcrl.envs.outcome import SENSORS, Outcome, observation_slices
from qcrl.envs.tasks import TASKS
from qcrl.errors import UserError

FRAMES_PER_SECOND = 50
TRAIL = 150
"""Past positions that a picture shows, one per frame."""
# Far beyond what the robot can do, yet finite, for learners that scale by the bounds.
_SENSOR_BOUNDS = {"accelerometer": 1000.0, "gyro": 100.0, "magnetometer": 0.5, "velocimeter": 100.0}


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
    ):
        """`renderer` may be "mujoco" on that engine, where OpenGL works; pictures are `size` pixels wide."""
        check_options(env_id, engine, render_mode)
        if renderer not in ("top_down", "mujoco"):
            raise UserError(f"renderer is {renderer!r}; choose 'top_down' or 'mujoco'")
        if renderer == "mujoco" and engine != "mujoco":
            raise UserError("renderer='mujoco' needs engine='mujoco'; 'top_down' works with both engines")
        self.observation_space, self.action_space = spaces(env_id)
        self.engine = _make_engine(env_id, engine)
        self.render_mode = render_mode
        self._renderer, self._size = renderer, size
        self._trail: deque[np.ndarray] = deque(maxlen=TRAIL)
        self._camera: Callable[[], np.ndarray] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._trail.clear()
        return self.engine.reset(self.np_random).astype(np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        outcome = self.engine.step(check_action(action, self.action_space))
        info = {"cost": outcome.cost, **{f"cost_{kind}": cost for kind, cost in outcome.sources.items()}}
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


def make_vector(
    env_id: str, engine: str, num_envs: int = 1, render_mode: str | None = None, **options: Any
) -> VectorEnv:
    """`num_envs` environments at once, autoreset on the next step: one compiled batch, or MuJoCo in turn."""
    check_options(env_id, engine, render_mode)
    if num_envs < 1:
        raise UserError(f"num_envs is {num_envs}; give 1 or more")
    if engine == "jax":
        from qcrl.envs.gym_jax import JaxVectorEnv

        return JaxVectorEnv(env_id, num_envs, render_mode, **options)
    make = partial(gymnasium.make, f"qcrl/{env_id}", engine=engine, render_mode=render_mode, **options)
    return SyncVectorEnv([make] * num_envs)


def spaces(env_id: str) -> tuple[Box, Box]:
    """Observation and action space of an environment."""
    if env_id not in TASKS:
        return Box(0.0, 1.0, (4,)), Box(-1.0, 1.0, (1,))
    task = TASKS[env_id]
    low, high = np.zeros(task.observation_size, np.float32), np.ones(task.observation_size, np.float32)
    places = observation_slices(task)
    for sensor in SENSORS:
        high[places[sensor]] = _SENSOR_BOUNDS[sensor]
        low[places[sensor]] = -_SENSOR_BOUNDS[sensor]
    return Box(low, high), Box(-1.0, 1.0, (2,))


def check_options(env_id: str, engine: str, render_mode: str | None) -> None:
    """Raises where these options cannot work."""
    if env_id not in ENVIRONMENT_IDS:
        raise UserError(f"there is no environment {env_id!r}; the known ones are {', '.join(ENVIRONMENT_IDS)}")
    if engine not in ("mujoco", "jax"):
        raise UserError(f"engine is {engine!r}; choose 'mujoco' or 'jax'")
    if engine == "mujoco" and env_id not in TASKS:
        raise UserError(f"{env_id} has no physics and runs on engine='jax' only")
    if render_mode not in (None, "rgb_array"):
        raise UserError(f"render_mode is {render_mode!r}; choose 'rgb_array' or None")


def check_action(action: Any, space: gymnasium.Space) -> np.ndarray:
    """The action as an array, of the right shape and finite; it need not lie within [-1, 1]."""
    try:
        array = np.asarray(action, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"the action {action!r} is not an array of numbers of shape {space.shape}") from error
    if array.shape != space.shape:
        raise UserError(f"the action has shape {array.shape}; give one of shape {space.shape}")
    if not np.isfinite(array).all():
        raise UserError(f"the action {array.tolist()} is not finite; give numbers, best within [-1, 1]")
    return array


def register_all() -> None:
    """Makes the environments known to Gymnasium; a second call changes nothing."""
    for env_id in ENVIRONMENT_IDS:
        if f"qcrl/{env_id}" not in gymnasium.registry:
            gymnasium.register(
                id=f"qcrl/{env_id}",
                entry_point="qcrl.envs.gym:GymEnv",
                vector_entry_point="qcrl.envs.gym:make_vector",
                kwargs={"env_id": env_id, "engine": "mujoco" if env_id in TASKS else "jax"},
            )


def _make_engine(env_id: str, engine: str) -> Engine:
    if engine == "jax":
        from qcrl.envs.gym_jax import JaxEngine

        return JaxEngine(env_id)
    from qcrl.envs.mujoco_engine import MujocoEngine

    return MujocoEngine(TASKS[env_id])


register_all()
