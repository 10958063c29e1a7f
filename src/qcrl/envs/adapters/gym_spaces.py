"""What Gymnasium's environments over both engines share: spaces, frame rates, and checks of options and actions."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import ArrayLike

from qcrl.envs import ENVIRONMENT_IDS
from qcrl.envs.point.outcome import SENSORS, observation_slices
from qcrl.envs.point.tasks import TASKS
from qcrl.errors import UserError

FRAMES_PER_SECOND = 50
TRAIL = 150
"""Past positions that a picture shows, one per frame."""
# Far beyond what the robot can do, yet finite, for learners that scale by the bounds.
_SENSOR_BOUNDS = {"accelerometer": 1000.0, "gyro": 100.0, "magnetometer": 0.5, "velocimeter": 100.0}


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


def check_action(action: ArrayLike, space: gymnasium.Space) -> np.ndarray:
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
