"""Gremlins: light boxes that circle on soft springs. The robot pushes through them and loses a little way."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from qcrl.envs.point import physics as point
from qcrl.envs.point.layout import Layout
from qcrl.envs.point.physics import Scalar
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


class Box(NamedTuple):
    """A gremlin: the centre of its circle, and how it is turned."""

    x: Scalar
    y: Scalar
    yaw: Scalar


def boxes(layout: Layout) -> Box:
    """All gremlins of a layout, as vectors."""
    return Box(layout.gremlins[:, 0], layout.gremlins[:, 1], layout.gremlin_yaw)


def touching(task: Task, body: point.Body, box: Box, travel: Scalar, seconds: Scalar) -> Bool[Array, "*gremlins"]:
    """Whether the robot is in contact with a gremlin: its sphere or its arrow overlaps the undisturbed box."""
    dx, dy = _from_centre(body, box, travel, seconds)
    ahead_x, ahead_y = dx + ARROW_OFFSET * jnp.cos(body.heading), dy + ARROW_OFFSET * jnp.sin(body.heading)
    return _overlap(task, box, dx, dy, RADIUS) | _overlap(task, box, ahead_x, ahead_y, ARROW_HALF)


def _from_centre(body: point.Body, box: Box, travel: Scalar, seconds: Scalar) -> tuple[Scalar, Scalar]:
    phase = seconds - LAG_SECONDS
    return body.x - (box.x + travel * jnp.sin(phase)), body.y - (box.y + travel * jnp.cos(phase))


def _overlap(task: Task, box: Box, dx: Scalar, dy: Scalar, radius: float) -> Bool[Array, "*gremlins"]:
    """Whether a disc, this far from the box's centre, overlaps it."""
    cosine, sine = jnp.cos(box.yaw), jnp.sin(box.yaw)
    along = jnp.maximum(jnp.abs(dx * cosine + dy * sine) - task.gremlin_size, 0)
    across = jnp.maximum(jnp.abs(dy * cosine - dx * sine) - task.gremlin_size, 0)
    return along**2 + across**2 < radius**2


def resistance(
    task: Task, body: point.Body, boxes: tuple[Box, ...], travel: Scalar, seconds: Scalar
) -> point.Generalized:
    """The force on the robot while it touches gremlins: it is dragged along, and pushed out of their way."""
    away_x = away_y = count = jnp.zeros_like(body.x)
    for box in boxes:
        touched = touching(task, body, box, travel, seconds).astype(body.x.dtype)
        dx, dy = _from_centre(body, box, travel, seconds)
        away = PUSH * touched / jnp.maximum(jnp.sqrt(dx * dx + dy * dy), 1e-6)
        away_x, away_y, count = away_x + away * dx, away_y + away * dy, count + touched
    phase = seconds - LAG_SECONDS
    relative_x, relative_y = body.vx - travel * jnp.cos(phase), body.vy + travel * jnp.sin(phase)
    slow = -DRAG * count / jnp.maximum(jnp.sqrt(relative_x**2 + relative_y**2), _SLOW)
    return point.Generalized(slow * relative_x + away_x, slow * relative_y + away_y, jnp.zeros_like(body.vx))
