"""Random legal layouts on the JAX engine, by rejection in Safety Gym's order, and the goals that may follow."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from qcrl.envs.point.layout import Layout
from qcrl.envs.point.tasks import Task

TRIES = 100
"""Candidates for one object before the whole layout is drawn again."""
QUEUE = 64
"""Prepared next goals (or next buttons) of an episode; used in a circle."""
_QUEUE_CANDIDATES = 256


class Successors(NamedTuple):
    """What follows each success, drawn at reset so that a step needs neither random numbers nor a loop."""

    goals: Float[Array, "queue 2"]
    button_jumps: Int[Array, " queue"]


def sample_layout(task: Task, key: Array) -> tuple[Layout, Successors]:
    """A legal layout. Repeats until there is one: an illegal layout is never returned."""
    if task.goal == "button" and task.buttons < 2:
        raise ValueError(f"{task.id}: a button task needs at least two buttons")

    def attempt(key: Array) -> tuple[Bool[Array, ""], Layout, Successors]:
        legal, places = _place_all(task, jax.random.fold_in(key, 0))
        goals_legal, goals = _next_goals(task, places, jax.random.fold_in(key, 1))
        heading, yaw, button, jump = jax.random.split(jax.random.fold_in(key, 2), 4)
        layout = Layout(
            robot=places["robot"][0],
            heading=_uniform(heading, (), jnp.pi),
            goal=places["goal"][0] if task.goal == "goal" else jnp.zeros(2),
            buttons=places["buttons"],
            hazards=places["hazards"],
            gremlins=places["gremlins"],
            gremlin_yaw=_uniform(yaw, (task.gremlins,), jnp.pi),
            goal_button=jax.random.randint(button, (), 0, max(task.buttons, 1), jnp.int32),
        )
        jumps = jax.random.randint(jump, (QUEUE if task.buttons else 0,), 1, max(task.buttons, 2), jnp.int32)
        return legal & goals_legal, layout, Successors(goals, jumps)

    def again(carry: tuple) -> tuple:
        key = jax.random.split(carry[0])[0]
        return key, *attempt(key)

    return jax.lax.while_loop(lambda carry: ~carry[1], again, (key, *attempt(key)))[2:]


def _uniform(key: Array, shape: tuple[int, ...], half: float) -> Float[Array, "..."]:
    return jax.random.uniform(key, shape, minval=-half, maxval=half)


def _clear(points: Float[Array, "n 2"], others: Float[Array, "m 2"], gap: float) -> Bool[Array, " n"]:
    """Which points keep at least `gap` from every one of the others."""
    apart = jnp.linalg.norm(points[:, None] - others[None], axis=-1)
    return jnp.all(apart >= gap, axis=1)


def _place_all(task: Task, key: Array) -> tuple[Bool[Array, ""], dict[str, Float[Array, "n 2"]]]:
    """Each object uniform in the square shrunk by its keepout, clear of those placed before it."""
    legal = jnp.ones((), bool)
    places: dict[str, Array] = {}
    placed: list[tuple[Array, float]] = []
    # A layout with a conflict is drawn again as a whole, so the order in which fixed things come does not matter; put
    # first, they are never in the way of something that was placed at random.
    order = sorted(range(len(task.placement)), key=lambda number: not task.placement[number][3])
    for number in order:
        kind, count, keepout, fixed = task.placement[number]
        spots = []
        for index in range(count):
            if fixed:
                candidates = jnp.asarray([fixed[index]], jnp.zeros(()).dtype)
            else:
                spot_key = jax.random.fold_in(jax.random.fold_in(key, number), index)
                candidates = _uniform(spot_key, (TRIES, 2), task.extent - keepout)
            good = jnp.ones(len(candidates), bool)
            for other, other_keepout in placed:
                good &= _clear(candidates, other[None], keepout + other_keepout)
            spot = candidates[jnp.argmax(good)]
            legal &= jnp.any(good)
            placed.append((spot, keepout))
            spots.append(spot)
        places[kind] = jnp.stack(spots) if spots else jnp.zeros((0, 2))
    return legal, places


def _next_goals(task: Task, places: dict[str, Array], key: Array) -> tuple[Bool[Array, ""], Float[Array, "queue 2"]]:
    """Positions clear of everything but the robot, uniform over the legal area.

    Two of them must be farther apart than twice the goal's distance from the robot: wherever the robot stands, one of
    them is then legal, so a step can always find the next goal in this list.
    """
    if task.goal != "goal":
        return jnp.ones((), bool), jnp.zeros((0, 2))
    candidates = _uniform(key, (_QUEUE_CANDIDATES, 2), task.extent - task.goal_keepout)
    good = jnp.ones(_QUEUE_CANDIDATES, bool)
    for kind, _, keepout, _ in task.placement:
        if kind not in ("robot", "goal"):
            good &= _clear(candidates, places[kind], keepout + task.goal_keepout)
    count = jnp.sum(good)
    order = jnp.argsort(~good, stable=True)
    goals = candidates[order[jnp.arange(QUEUE) % jnp.clip(count, 1, QUEUE)]]
    spread = jnp.max(jnp.linalg.norm(goals[:, None] - goals[None], axis=-1))
    return (count > 0) & (spread > 2 * (task.goal_keepout + task.robot_keepout)), goals
