"""Safety Gym's Point robot in closed form: two slides, a hinge, a motor along the body, a velocity servo on the hinge.

Everything is written in scalar components rather than small vectors, so that a batch of environments becomes long,
contiguous loops. Contacts follow MuJoCo's soft-constraint equations for its default pyramidal friction cone.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qcrl.envs.point.robot import (
    ARROW_HALF,
    ARROW_OFFSET,
    FORCE_LIMIT,
    GEAR,
    GRAVITY,
    HINGE_DAMPING,
    MAGNETIC_FIELD,
    RADIUS,
    SLIDE_DAMPING,
    TIMESTEP,
)

Scalar = Float[Array, ""]

_SPHERE_MASS = 4 / 3 * math.pi * RADIUS**3
_ARROW_MASS = (2 * ARROW_HALF) ** 3
MASS = _SPHERE_MASS + _ARROW_MASS
COM_OFFSET = _ARROW_MASS * ARROW_OFFSET / MASS
COM_INERTIA = (
    2 / 5 * _SPHERE_MASS * RADIUS**2
    + _SPHERE_MASS * COM_OFFSET**2
    + _ARROW_MASS * (2 * ARROW_HALF) ** 2 / 6
    + _ARROW_MASS * (ARROW_OFFSET - COM_OFFSET) ** 2
)
HINGE_INERTIA = COM_INERTIA + MASS * COM_OFFSET**2
_OFFSET_MASS = MASS * COM_OFFSET

# Mean of the three diagonal terms of J M^-1 J' at the centre of mass, which cannot move along z.
INVERSE_WEIGHT = 2 / (3 * MASS)

# solref .02 1 and solimp .9 .95 .001 with midpoint .5 and power 2: MuJoCo's defaults.
_IMPEDANCE_MIN, _IMPEDANCE_MAX, _IMPEDANCE_WIDTH = 0.9, 0.95, 0.001
_TIME_CONSTANT = 0.02
_STIFFNESS = 1 / (_IMPEDANCE_MAX * _TIME_CONSTANT) ** 2
_DAMPING = 2 / (_IMPEDANCE_MAX * _TIME_CONSTANT)
_NEWTON_ITERATIONS = 5


class Body(NamedTuple):
    """Pose and velocity of the robot: position of the hinge axis, heading, and their time derivatives."""

    x: Scalar
    y: Scalar
    heading: Scalar
    vx: Scalar
    vy: Scalar
    spin: Scalar


class Generalized(NamedTuple):
    """A generalized force or acceleration: along x, along y, about the hinge."""

    x: Scalar
    y: Scalar
    turn: Scalar


class Contact(NamedTuple):
    """The robot touching something round that does not move, where `distance` is negative."""

    distance: Scalar
    normal_x: Scalar
    """Unit normal, from the obstacle to the robot."""
    normal_y: Scalar
    arm_x: Scalar
    """Contact point relative to the hinge axis."""
    arm_y: Scalar
    rolling: float
    """Rolling friction coefficient; sliding friction is 1."""


def solve_mass(body: Body, force: Generalized, damping_time: float = 0.0) -> Generalized:
    """(M + damping_time D)^-1 force, for the mass matrix with its offset centre of mass."""
    slide = MASS + damping_time * SLIDE_DAMPING
    hinge = HINGE_INERTIA + damping_time * HINGE_DAMPING
    sine, cosine = _OFFSET_MASS * jnp.sin(body.heading), _OFFSET_MASS * jnp.cos(body.heading)
    turn = (force.turn + (sine * force.x - cosine * force.y) / slide) / (hinge - _OFFSET_MASS**2 / slide)
    return Generalized((force.x + sine * turn) / slide, (force.y - cosine * turn) / slide, turn)


def smooth_force(body: Body, drive: Scalar, turn: Scalar, extra: Generalized | None = None) -> Generalized:
    """Actuators, joint damping and the centripetal term; `extra` is any other outside force."""
    motor = GEAR * jnp.clip(drive, -FORCE_LIMIT, FORCE_LIMIT)
    servo = GEAR * jnp.clip(turn - GEAR * body.spin, -FORCE_LIMIT, FORCE_LIMIT)
    along = motor + _OFFSET_MASS * body.spin**2
    force = Generalized(
        along * jnp.cos(body.heading) - SLIDE_DAMPING * body.vx,
        along * jnp.sin(body.heading) - SLIDE_DAMPING * body.vy,
        servo - HINGE_DAMPING * body.spin,
    )
    return force if extra is None else Generalized(*(a + b for a, b in zip(force, extra)))


def integrate(body: Body, force: Generalized) -> Body:
    """One Euler step of MuJoCo: joint damping implicit, position from the new velocity."""
    acceleration = solve_mass(body, force, damping_time=TIMESTEP)
    vx = body.vx + TIMESTEP * acceleration.x
    vy = body.vy + TIMESTEP * acceleration.y
    spin = body.spin + TIMESTEP * acceleration.turn
    return Body(body.x + TIMESTEP * vx, body.y + TIMESTEP * vy, body.heading + TIMESTEP * spin, vx, vy, spin)


def touch_sphere(body: Body, x: Scalar, y: Scalar, radius: float) -> Contact:
    """The robot's sphere against a fixed sphere of the same height."""
    dx, dy = body.x - x, body.y - y
    apart = jnp.sqrt(dx * dx + dy * dy)
    nx, ny = dx / apart, dy / apart
    distance = apart - (RADIUS + radius)
    reach = RADIUS + distance / 2
    return Contact(distance, nx, ny, -nx * reach, -ny * reach, rolling=0.01)


def touch_arrow(body: Body, x: Scalar, y: Scalar, radius: float) -> Contact:
    """The robot's arrow box against a fixed sphere of the same height."""
    cosine, sine = jnp.cos(body.heading), jnp.sin(body.heading)
    dx, dy = x - body.x, y - body.y
    forward, left = dx * cosine + dy * sine - ARROW_OFFSET, dy * cosine - dx * sine
    near_forward = jnp.clip(forward, -ARROW_HALF, ARROW_HALF)
    near_left = jnp.clip(left, -ARROW_HALF, ARROW_HALF)
    gap_forward, gap_left = near_forward - forward, near_left - left
    apart = jnp.sqrt(gap_forward * gap_forward + gap_left * gap_left)
    safe = jnp.where(apart > 0, apart, 1)
    nf, nl = gap_forward / safe, gap_left / safe
    distance = apart - radius
    af = ARROW_OFFSET + near_forward - nf * distance / 2
    al = near_left - nl * distance / 2
    return Contact(
        distance,
        nf * cosine - nl * sine,
        nf * sine + nl * cosine,
        af * cosine - al * sine,
        af * sine + al * cosine,
        rolling=0.0001,
    )


def contact_force(body: Body, force: Generalized, contacts: list[Contact]) -> Generalized:
    """MuJoCo's constraint force: that of the a which minimises |a - M^-1 force|^2_M + sum of D min(0, J a - aref)^2.

    The rows of one contact are the edges of the friction pyramid, normal +- friction * tangent. The robot cannot move
    vertically nor turn about a horizontal axis, so six of the ten edges fall together with the plain normal.
    """
    free = solve_mass(body, force)
    rows = []
    for contact in contacts:
        depth = jnp.clip(-contact.distance / _IMPEDANCE_WIDTH, 0, 1)
        ramp = jnp.where(depth <= 0.5, 2 * depth**2, 1 - 2 * (1 - depth) ** 2)
        impedance = _IMPEDANCE_MIN + ramp * (_IMPEDANCE_MAX - _IMPEDANCE_MIN)
        inverse_regularizer = impedance / (4 * INVERSE_WEIGHT * (1 - impedance))
        weight = jnp.where(contact.distance < 0, inverse_regularizer, 0)
        nx, ny = contact.normal_x, contact.normal_y
        normal = (nx, ny, contact.arm_x * ny - contact.arm_y * nx)
        slide = (-ny, nx, contact.arm_x * nx + contact.arm_y * ny)
        edges = (
            (6.0, normal),
            (1.0, tuple(n + t for n, t in zip(normal, slide))),
            (1.0, tuple(n - t for n, t in zip(normal, slide))),
            (1.0, (normal[0], normal[1], normal[2] + contact.rolling)),
            (1.0, (normal[0], normal[1], normal[2] - contact.rolling)),
        )
        for count, jacobian in edges:
            speed = jacobian[0] * body.vx + jacobian[1] * body.vy + jacobian[2] * body.spin
            reference = -_DAMPING * speed - _STIFFNESS * impedance * contact.distance
            rows.append((count * weight, jacobian, reference))

    off_x = -_OFFSET_MASS * jnp.sin(body.heading)
    off_y = _OFFSET_MASS * jnp.cos(body.heading)

    def newton(_: int, acceleration: Generalized) -> Generalized:
        ax, ay, at = (a - f for a, f in zip(acceleration, free))
        gx = MASS * ax + off_x * at
        gy = MASS * ay + off_y * at
        gt = off_x * ax + off_y * ay + HINGE_INERTIA * at
        hxx = hyy = jnp.full_like(ax, MASS)
        hxy = jnp.zeros_like(ax)
        hxt, hyt, htt = off_x, off_y, jnp.full_like(ax, HINGE_INERTIA)
        for weight, (jx, jy, jt), reference in rows:
            gap = jx * acceleration.x + jy * acceleration.y + jt * acceleration.turn - reference
            active = jnp.where(gap < 0, weight, 0)
            push = active * gap
            gx, gy, gt = gx + push * jx, gy + push * jy, gt + push * jt
            hxx, hxy, hxt = hxx + active * jx * jx, hxy + active * jx * jy, hxt + active * jx * jt
            hyy, hyt, htt = hyy + active * jy * jy, hyt + active * jy * jt, htt + active * jt * jt
        # Symmetric 3 x 3 solve by elimination; the Hessian is positive definite.
        lxy, lxt = hxy / hxx, hxt / hxx
        dyy, dyt, dtt = hyy - lxy * hxy, hyt - lxy * hxt, htt - lxt * hxt
        ry, rt = gy - lxy * gx, gt - lxt * gx
        step_t = (rt - dyt / dyy * ry) / (dtt - dyt / dyy * dyt)
        step_y = (ry - dyt * step_t) / dyy
        step_x = (gx - hxy * step_y - hxt * step_t) / hxx
        return Generalized(acceleration.x - step_x, acceleration.y - step_y, acceleration.turn - step_t)

    solution = jax.lax.fori_loop(0, _NEWTON_ITERATIONS, newton, free)
    fx = fy = ft = jnp.zeros_like(free.x)
    for weight, (jx, jy, jt), reference in rows:
        gap = jx * solution.x + jy * solution.y + jt * solution.turn - reference
        push = -weight * jnp.minimum(gap, 0)
        fx, fy, ft = fx + push * jx, fy + push * jy, ft + push * jt
    return Generalized(fx, fy, ft)


def sensors(body: Body, acceleration: Generalized) -> dict[str, Float[Array, "3"]]:
    """Accelerometer (with gravity), gyro, magnetometer and velocimeter at the hinge axis, in the robot's frame."""
    cosine, sine = jnp.cos(body.heading), jnp.sin(body.heading)
    zero = jnp.zeros_like(cosine)

    def to_body(x: Scalar, y: Scalar, z: Scalar) -> Float[Array, "3"]:
        return jnp.stack([x * cosine + y * sine, y * cosine - x * sine, z])

    return {
        "accelerometer": to_body(acceleration.x, acceleration.y, zero + GRAVITY),
        "gyro": jnp.stack([zero, zero, body.spin]),
        "magnetometer": jnp.stack([-MAGNETIC_FIELD * sine, -MAGNETIC_FIELD * cosine, zero]),
        "velocimeter": to_body(body.vx, body.vy, zero),
    }
