"""One step of the robot: ten substeps of the physics. Every number is one of a single environment."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qcrl.envs.point import gremlins, robot
from qcrl.envs.point import physics as point
from qcrl.envs.point.launch import in_one_launch
from qcrl.envs.point.physics import Scalar
from qcrl.envs.point.tasks import Task

Place = tuple[Scalar, Scalar]


class Surroundings(NamedTuple):
    """What acts on the robot within a step."""

    drive: Scalar
    turn: Scalar
    seconds: Scalar
    """Since the episode began."""
    buttons: tuple[Place, ...]
    """The one nearest to the sphere and the one nearest to the arrow; none where the task has none."""
    gremlins: tuple[gremlins.Box, ...]
    gremlin_travel: Scalar


def move(task: Task, body: point.Body, around: Surroundings) -> tuple[point.Body, point.Generalized]:
    """Where a step leads, and the acceleration that the sensors then report: explicit, for the state reached."""
    function = partial(_move, task)
    run = function if jax.default_backend() == "cpu" else in_one_launch(function)
    return run(body, around)


def _move(task: Task, body: point.Body, around: Surroundings) -> tuple[point.Body, point.Generalized]:
    # The force is needed once more than there are substeps. So that it is compiled only once, each turn of the loop
    # takes the substep before it.
    def turn(number: Scalar, now: tuple[point.Body, point.Generalized]) -> tuple[point.Body, point.Generalized]:
        moved = point.integrate(*now)
        body = jax.tree.map(lambda new, old: jnp.where(number > 0, new, old), moved, now[0])
        return body, net_force(task, body, around, around.seconds + number * robot.TIMESTEP)

    still = point.Generalized(*(jnp.zeros_like(body.x) for _ in point.Generalized._fields))
    body, force = jax.lax.fori_loop(0, robot.SUBSTEPS + 1, turn, (body, still))
    return body, point.solve_mass(body, force)


def net_force(task: Task, body: point.Body, around: Surroundings, seconds: Scalar) -> point.Generalized:
    """All that pushes the robot."""
    extra = gremlins.resistance(task, body, around.gremlins, around.gremlin_travel, seconds) if task.gremlins else None
    force = point.smooth_force(body, around.drive, around.turn, extra)
    if not task.buttons:
        return force
    sphere, arrow = around.buttons
    contacts = [
        point.touch_sphere(body, *sphere, task.button_size),
        point.touch_arrow(body, *arrow, task.button_size),
    ]
    push = point.contact_force(body, force, contacts)
    return point.Generalized(*(a + b for a, b in zip(force, push)))
