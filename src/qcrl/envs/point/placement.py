"""Random legal layouts on the JAX engine, by rejection in Safety Gym's order, and the goals that may follow."""

import math
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
        # All numbers from one draw: every call of the generator takes XLA most of a second to compile.
        random = Drawn(jax.random.uniform(key, (_numbers(task),)))
        legal, places = _place_all(task, random)
        goals_legal, goals = _next_goals(task, places, random)
        layout = Layout(
            robot=places["robot"][0],
            heading=random.spread(jnp.pi),
            goal=places["goal"][0] if task.goal == "goal" else jnp.zeros(2),
            buttons=places["buttons"],
            hazards=places["hazards"],
            gremlins=places["gremlins"],
            gremlin_yaw=random.spread(jnp.pi, task.gremlins),
            goal_button=random.below(task.buttons) if task.buttons else jnp.zeros((), jnp.int32),
        )
        jumps = 1 + random.below(task.buttons - 1, QUEUE) if task.buttons else jnp.zeros(0, jnp.int32)
        return legal & goals_legal, layout, Successors(goals, jumps)

    def again(carry: tuple) -> tuple:
        key = jax.random.split(carry[0])[0]
        return key, *attempt(key)

    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(attempt, key))
    return jax.lax.while_loop(lambda carry: ~carry[1], again, (key, *nothing))[2:]


class Drawn:
    """Uniform numbers from 0 to 1, used up one after the other."""

    def __init__(self, numbers: Float[Array, " n"]) -> None:
        self.numbers = numbers

    def take(self, *shape: int) -> Float[Array, "..."]:
        """The next ones, in this shape."""
        count = math.prod(shape)
        taken, self.numbers = self.numbers[:count], self.numbers[count:]
        return taken.reshape(shape)

    def spread(self, half: float, *shape: int) -> Float[Array, "..."]:
        """Uniform from -half to half."""
        return (2 * self.take(*shape) - 1) * half

    def below(self, end: int, *shape: int) -> Int[Array, "..."]:
        """Whole numbers from 0 to end - 1, each equally likely."""
        return jnp.minimum((self.take(*shape) * end).astype(jnp.int32), end - 1)


def _numbers(task: Task) -> int:
    """How many random numbers an attempt takes."""
    placed = sum(count for _, count, _, fixed in task.placement if not fixed)
    goals = _QUEUE_CANDIDATES if task.goal == "goal" else 0
    return 2 * (TRIES * placed + goals) + 1 + task.gremlins + (1 + QUEUE if task.buttons else 0)


def _apart(points: Float[Array, "n 2"], others: Float[Array, "m 2"], gap: float) -> Bool[Array, "n m"]:
    """Which points keep at least `gap` from which of the others."""
    x, y = (points[:, None, axis] - others[None, :, axis] for axis in (0, 1))
    return x * x + y * y >= gap * gap


def _place_all(task: Task, random: Drawn) -> tuple[Bool[Array, ""], dict[str, Float[Array, "n 2"]]]:
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
                candidates = random.spread(task.extent - keepout, TRIES, 2)
            good = jnp.ones(len(candidates), bool)
            for other, other_keepout in placed:
                good &= _apart(candidates, other[None], keepout + other_keepout)[:, 0]
            spot = candidates[jnp.argmax(good)]
            legal &= jnp.any(good)
            placed.append((spot, keepout))
            spots.append(spot)
        places[kind] = jnp.stack(spots) if spots else jnp.zeros((0, 2))
    return legal, places


def _next_goals(task: Task, places: dict[str, Array], random: Drawn) -> tuple[Bool[Array, ""], Float[Array, "queue 2"]]:
    """Positions clear of everything but the robot, uniform over the legal area.

    Two of them must be farther apart than twice the goal's distance from the robot: wherever the robot stands, one of
    them is then legal, so a step can always find the next goal in this list.
    """
    if task.goal != "goal":
        return jnp.ones((), bool), jnp.zeros((0, 2))
    candidates = random.spread(task.extent - task.goal_keepout, _QUEUE_CANDIDATES, 2)
    good = jnp.ones(_QUEUE_CANDIDATES, bool)
    for kind, _, keepout, _ in task.placement:
        if kind not in ("robot", "goal"):
            good &= jnp.all(_apart(candidates, places[kind], keepout + task.goal_keepout), axis=1)
    count = jnp.sum(good)
    # The first legal ones, from the start again where there are fewer than places in the queue.
    wanted = jnp.arange(QUEUE) % jnp.clip(count, 1, QUEUE)
    goals = candidates[jnp.argmax(good & (jnp.cumsum(good) - 1 == wanted[:, None]), axis=1)]
    far = _apart(goals, goals, 2 * (task.goal_keepout + task.robot_keepout))
    return (count > 0) & jnp.any(far), goals
