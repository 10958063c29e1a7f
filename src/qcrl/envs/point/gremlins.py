"""Gremlins: light boxes that circle on soft springs. The robot pushes through them and loses a little way."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from qcrl.envs.point import physics as point
from qcrl.envs.point.layout import Layout
from qcrl.envs.point.robot import ARROW_HALF, ARROW_OFFSET, RADIUS
from qcrl.envs.point.tasks import Task

LAG_SECONDS = 0.089
"""How far a box trails the target that its spring pulls it to. Measured in MuJoCo, like the next two."""
DRAG = 0.003
"""Force on a robot in contact, in newtons, against its motion relative to the box."""
PUSH = 0.0045
"""Force on a robot in contact, in newtons, away from the box's centre."""
_SLOW = 0.05
"""Relative speed below which the drag fades, in metres per second."""


def positions(layout: Layout, travel: Float[Array, ""], seconds: Float[Array, ""]) -> Float[Array, "gremlins 2"]:
    """Centres of the undisturbed boxes, all in the same phase."""
    phase = seconds - LAG_SECONDS
    return layout.gremlins + travel * jnp.stack([jnp.sin(phase), jnp.cos(phase)])


def touching(
    task: Task, body: point.Body, layout: Layout, travel: Float[Array, ""], seconds: Float[Array, ""]
) -> Bool[Array, " gremlins"]:
    """Which gremlins the robot is in contact with: its sphere or its arrow overlaps the undisturbed box."""
    boxes = positions(layout, travel, seconds)
    dx, dy = body.x - boxes[:, 0], body.y - boxes[:, 1]
    ahead_x, ahead_y = dx + ARROW_OFFSET * jnp.cos(body.heading), dy + ARROW_OFFSET * jnp.sin(body.heading)
    return _overlap(task, layout, dx, dy, RADIUS) | _overlap(task, layout, ahead_x, ahead_y, ARROW_HALF)


def _overlap(
    task: Task, layout: Layout, dx: Float[Array, " gremlins"], dy: Float[Array, " gremlins"], radius: float
) -> Bool[Array, " gremlins"]:
    """Whether a disc, this far from the boxes' centres, overlaps them."""
    cosine, sine = jnp.cos(layout.gremlin_yaw), jnp.sin(layout.gremlin_yaw)
    along = jnp.maximum(jnp.abs(dx * cosine + dy * sine) - task.gremlin_size, 0)
    across = jnp.maximum(jnp.abs(dy * cosine - dx * sine) - task.gremlin_size, 0)
    return along**2 + across**2 < radius**2


def resistance(
    task: Task, body: point.Body, layout: Layout, travel: Float[Array, ""], seconds: Float[Array, ""]
) -> point.Generalized:
    """The force on the robot while it touches gremlins: it is dragged along, and pushed out of their way."""
    touched = touching(task, body, layout, travel, seconds).astype(body.x.dtype)
    boxes = positions(layout, travel, seconds)
    dx, dy = body.x - boxes[:, 0], body.y - boxes[:, 1]
    away = PUSH * touched / jnp.maximum(jnp.sqrt(dx * dx + dy * dy), 1e-6)
    phase = seconds - LAG_SECONDS
    relative_x, relative_y = body.vx - travel * jnp.cos(phase), body.vy + travel * jnp.sin(phase)
    slow = -DRAG * jnp.sum(touched) / jnp.maximum(jnp.sqrt(relative_x**2 + relative_y**2), _SLOW)
    return point.Generalized(
        slow * relative_x + jnp.sum(away * dx), slow * relative_y + jnp.sum(away * dy), jnp.zeros_like(body.vx)
    )
