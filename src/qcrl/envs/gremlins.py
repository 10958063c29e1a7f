"""Gremlins: light boxes that circle on soft springs. The robot pushes through them and loses a little way."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from qcrl.envs import point
from qcrl.envs.layout import Layout
from qcrl.envs.robot import RADIUS
from qcrl.envs.tasks import Task

LAG_SECONDS = 0.089
"""How far a box trails the target that its spring pulls it to. Measured in MuJoCo, like the next two."""
DRAG = 0.0065
"""Force on a robot that is in contact, in newtons, against its motion relative to the box."""
_SLOW = 0.05
"""Relative speed below which the drag fades, in metres per second."""


def positions(
    task: Task, layout: Layout, travel: Float[Array, ""], seconds: Float[Array, ""]
) -> Float[Array, "gremlins 2"]:
    """Centres of the undisturbed boxes, all in the same phase."""
    phase = seconds - LAG_SECONDS
    return layout.gremlins + travel * jnp.stack([jnp.sin(phase), jnp.cos(phase)])


def touching(
    task: Task,
    x: point.Scalar,
    y: point.Scalar,
    layout: Layout,
    travel: Float[Array, ""],
    seconds: Float[Array, ""],
) -> Bool[Array, " gremlins"]:
    """Which gremlins the robot is in contact with: its sphere overlaps the undisturbed box."""
    boxes = positions(task, layout, travel, seconds)
    dx, dy = x - boxes[:, 0], y - boxes[:, 1]
    cosine, sine = jnp.cos(layout.gremlin_yaw), jnp.sin(layout.gremlin_yaw)
    along = jnp.maximum(jnp.abs(dx * cosine + dy * sine) - task.gremlin_size, 0)
    across = jnp.maximum(jnp.abs(dy * cosine - dx * sine) - task.gremlin_size, 0)
    return along**2 + across**2 < RADIUS**2


def drag(
    task: Task, body: point.Body, layout: Layout, travel: Float[Array, ""], seconds: Float[Array, ""]
) -> point.Generalized:
    """The force on the robot while it pushes through."""
    count = jnp.sum(touching(task, body.x, body.y, layout, travel, seconds)).astype(body.x.dtype)
    phase = seconds - LAG_SECONDS
    vx, vy = body.vx - travel * jnp.cos(phase), body.vy + travel * jnp.sin(phase)
    scale = -DRAG * count / jnp.maximum(jnp.sqrt(vx * vx + vy * vy), _SLOW)
    return point.Generalized(scale * vx, scale * vy, jnp.zeros_like(vx))
