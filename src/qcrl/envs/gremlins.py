"""Gremlins: light boxes that circle on soft springs. The robot pushes through them and loses a little way."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from qcrl.envs import point
from qcrl.envs.layout import Layout
from qcrl.envs.robot import RADIUS
from qcrl.envs.tasks import Task

LAG_SECONDS = 0.089
"""How far a box trails the target that its spring pulls it to. Measured in MuJoCo, like the next two."""
DRAG = 0.004
"""Force on a robot in contact, in newtons, against its own motion."""
PUSH = 0.004
"""Force on a robot in contact, in newtons, away from the box's centre."""
_SLOW = 0.05
"""Speed below which the drag fades, in metres per second."""


def positions(layout: Layout, travel: Float[Array, ""], seconds: Float[Array, ""]) -> Float[Array, "gremlins 2"]:
    """Centres of the undisturbed boxes, all in the same phase."""
    phase = seconds - LAG_SECONDS
    return layout.gremlins + travel * jnp.stack([jnp.sin(phase), jnp.cos(phase)])


def _offsets(
    layout: Layout, x: point.Scalar, y: point.Scalar, travel: Float[Array, ""], seconds: Float[Array, ""]
) -> tuple[Float[Array, " gremlins"], Float[Array, " gremlins"]]:
    boxes = positions(layout, travel, seconds)
    return x - boxes[:, 0], y - boxes[:, 1]


def _overlap(
    task: Task, layout: Layout, dx: Float[Array, " gremlins"], dy: Float[Array, " gremlins"]
) -> Bool[Array, " gremlins"]:
    cosine, sine = jnp.cos(layout.gremlin_yaw), jnp.sin(layout.gremlin_yaw)
    along = jnp.maximum(jnp.abs(dx * cosine + dy * sine) - task.gremlin_size, 0)
    across = jnp.maximum(jnp.abs(dy * cosine - dx * sine) - task.gremlin_size, 0)
    return along**2 + across**2 < RADIUS**2


def touching(
    task: Task, x: point.Scalar, y: point.Scalar, layout: Layout, travel: Float[Array, ""], seconds: Float[Array, ""]
) -> Bool[Array, " gremlins"]:
    """Which gremlins the robot is in contact with: its sphere overlaps the undisturbed box."""
    return _overlap(task, layout, *_offsets(layout, x, y, travel, seconds))


def resistance(
    task: Task, body: point.Body, layout: Layout, travel: Float[Array, ""], seconds: Float[Array, ""]
) -> point.Generalized:
    """The force on the robot while it touches gremlins: it is slowed, and pushed out of their way."""
    dx, dy = _offsets(layout, body.x, body.y, travel, seconds)
    touched = _overlap(task, layout, dx, dy).astype(body.x.dtype)
    away = PUSH * touched / jnp.maximum(jnp.sqrt(dx * dx + dy * dy), 1e-6)
    slow = -DRAG * jnp.sum(touched) / jnp.maximum(jnp.sqrt(body.vx**2 + body.vy**2), _SLOW)
    return point.Generalized(
        slow * body.vx + jnp.sum(away * dx), slow * body.vy + jnp.sum(away * dy), jnp.zeros_like(body.vx)
    )
