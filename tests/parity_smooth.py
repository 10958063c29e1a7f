"""Pose, velocity and the 12 sensor values of both engines over the first 30 substeps of 100 random action sequences."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from qcrl.envs.point import physics as point
from qcrl.envs.point import robot
from qcrl.envs.point.mjcf import mjcf
from qcrl.envs.point.tasks import TASKS

SEQUENCES, SUBSTEPS = 100, 30
assert jnp.zeros(()).dtype == jnp.float64

rng = np.random.default_rng(0)
poses = rng.uniform(-3, 3, (SEQUENCES, 3))
velocities = rng.normal(size=(SEQUENCES, 3)) * [0.5, 0.5, 2.0]
actions = np.repeat(rng.uniform(-1, 1, (SEQUENCES, SUBSTEPS // robot.SUBSTEPS, 2)), robot.SUBSTEPS, axis=1)


@jax.jit
@jax.vmap
def ours(pose, velocity, actions):
    def substep(body, action):
        body = point.integrate(body, point.smooth_force(body, *action))
        acceleration = point.solve_mass(body, point.smooth_force(body, *action))
        readings = point.sensors(body, acceleration)
        return body, jnp.concatenate([jnp.stack(body), *(readings[name] for name in sorted(readings))])

    return jax.lax.scan(substep, point.Body(*pose, *velocity), actions)[1]


model = mujoco.MjModel.from_xml_string(mjcf(TASKS["DynamicEnv-v0"]))
data = mujoco.MjData(model)


def theirs(pose, velocity, actions):
    mujoco.mj_resetData(model, data)
    data.qpos[:], data.qvel[:] = pose, velocity
    rows = []
    for action in actions:
        data.ctrl[:] = action
        mujoco.mj_step(model, data)
        mujoco.mj_forward(model, data)
        rows.append(np.concatenate([data.qpos, data.qvel, data.sensordata]))
    return np.array(rows)


difference = np.abs(
    np.asarray(ours(poses, velocities, actions)) - np.array(list(map(theirs, poses, velocities, actions)))
)
print(f"largest difference {difference.max():.1e}")
assert difference.shape == (SEQUENCES, SUBSTEPS, 6 + 12)
assert difference.max() < 1e-6
