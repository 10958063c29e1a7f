"""The JAX engine: any task of `tasks.py` as pure functions, after Safety Gym's step order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from qcrl.envs.base import ONE_COST, Step
from qcrl.envs.point import gremlins, robot
from qcrl.envs.point import physics as point
from qcrl.envs.point.layout import Layout
from qcrl.envs.point.lidar import lidar
from qcrl.envs.point.motion import Surroundings, move
from qcrl.envs.point.physics import Body
from qcrl.envs.point.pictures import Scene
from qcrl.envs.point.placement import QUEUE, Successors, sample_layout
from qcrl.envs.point.tasks import ENERGY, Task
from qcrl.errors import check_name

Scalar = Float[Array, ""]


class Parameters(NamedTuple):
    """The numbers of a task that may differ from one environment of a batch to the next."""

    hazard_size: Scalar
    goal_size: Scalar
    goal_reward: Scalar
    gremlin_travel: Scalar
    lidar_reach: Scalar


class State(NamedTuple):
    """Everything that a step needs. In the layout the goal, or the goal button, is the current one, the robot's place
    that of the episode's start."""

    body: Body
    layout: Layout
    successors: Successors
    cursor: Int[Array, ""]
    timer: Int[Array, ""]
    time: Int[Array, ""]
    charged: dict[str, Bool[Array, ""]]
    """Which kinds of object the last step's cost came from."""
    parameters: Parameters


def _of_task(name: str) -> property:
    return property(lambda env: getattr(env.task, name))


@dataclass(frozen=True)
class PointEnv:
    """One task on the JAX engine."""

    task: Task
    costs: tuple[str, ...] = ONE_COST
    """Those of `task.costs` that a step reports; a single one as a number."""
    fixed_length = True
    discrete = False
    timed = True
    action_size = 2

    id, description, observation_size, horizon = map(_of_task, ("id", "description", "observation_size", "horizon"))

    @property
    def parameters(self) -> Parameters:
        return Parameters(*(jnp.asarray(getattr(self.task, name), float) for name in Parameters._fields))

    def reset(self, key: Array, parameters: Parameters | None = None) -> tuple[State, Float[Array, " obs"]]:
        """A fresh episode; `parameters` override the task's own."""
        return self.start(*sample_layout(self.task, key), parameters)

    def start(
        self, layout: Layout, successors: Successors, parameters: Parameters | None = None
    ) -> tuple[State, Float[Array, " obs"]]:
        """An episode that begins at rest in this layout."""
        zero = jnp.zeros((), jnp.int32)
        still = jnp.zeros_like(layout.heading)
        state = State(
            body=Body(layout.robot[0], layout.robot[1], layout.heading, still, still, still),
            layout=layout,
            successors=successors,
            cursor=zero,
            timer=zero,
            time=zero,
            charged={kind: jnp.zeros((), bool) for kind in self.task.cost_kinds},
            parameters=self.parameters if parameters is None else parameters,
        )
        return state, self._observe(state, point.Generalized(still, still, still))

    def step(self, state: State, action: Float[Array, " action"]) -> tuple[State, Step]:
        """Clip, simulate, reward, cost, timer, goal check, observe."""
        task, layout, before = self.task, state.layout, state.body
        body, acceleration = self._move(state, jnp.clip(action, -1, 1))
        state = state._replace(body=body, time=state.time + 1)
        pressed = self._pressed(body, layout)
        reward = self._goal_distance(layout, before) - self._goal_distance(layout, body)
        charged = self._charged(state, pressed)
        cost = jnp.any(jnp.stack(list(charged.values())))
        timer = jnp.maximum(state.timer - 1, 0)

        if task.goal == "goal":
            success = self._goal_distance(layout, body) <= state.parameters.goal_size
        else:
            success = pressed[layout.goal_button]
        following, cursor = self._next_goal(state)
        state = state._replace(
            layout=layout._replace(
                goal=jnp.where(success, following.goal, layout.goal),
                goal_button=jnp.where(success, following.goal_button, layout.goal_button),
            ),
            cursor=jnp.where(success, cursor, state.cursor),
            timer=jnp.where(success, task.button_delay, timer),
            charged=charged,
        )
        return state, Step(
            obs=self._observe(state, acceleration),
            reward=reward + jnp.where(success, state.parameters.goal_reward, 0),
            cost=cost.astype(reward.dtype) if self.costs == ONE_COST else self._costs(cost, charged, action),
            terminated=jnp.zeros((), bool),
            truncated=state.time >= task.horizon,
        )

    @property
    def most_costs(self) -> tuple[float, ...]:
        """The most that an episode can cost, of each: no step costs more than 1."""
        return (float(self.horizon),) * len(self.costs)

    def with_costs(self, names: Sequence[str]) -> "PointEnv":
        """The same task, which reports these costs."""
        for name in names:
            check_name("cost", name, self.task.costs)
        return replace(self, costs=tuple(names))

    def _costs(self, cost: Array, charged: dict[str, Array], action: Float[Array, "2"]) -> Float[Array, "*cost"]:
        energy = jnp.mean(jnp.square(jnp.clip(action, -1, 1)))
        found = {"cost": cost, **charged, ENERGY: energy}
        values = jnp.stack([found[name].astype(energy.dtype) for name in self.costs])
        return values[0] if len(values) == 1 else values

    def sources(self, state: State) -> dict[str, Float[Array, ""]]:
        """The last step's cost by kind of object, each 0 or 1."""
        return {kind: charged.astype(state.body.x.dtype) for kind, charged in state.charged.items()}

    def scene(self, state: State) -> Scene:
        """The present moment, for the renderer."""
        gremlin_places = gremlins.positions(state.layout, state.parameters.gremlin_travel, self._seconds(state))
        state, places = jax.device_get((state, gremlin_places))
        layout = state.layout
        return Scene(
            task=self.task,
            robot=np.array([state.body.x, state.body.y]),
            heading=float(state.body.heading),
            goal=layout.goal if self.task.goal == "goal" else None,
            hazards=layout.hazards,
            buttons=layout.buttons,
            goal_button=int(layout.goal_button),
            buttons_live=int(state.timer) == 0,
            gremlins=places,
            gremlin_yaw=layout.gremlin_yaw,
            cost=any(state.charged.values()),
        )

    def _move(self, state: State, action: Float[Array, "2"]) -> tuple[Body, point.Generalized]:
        """Where the action leads, and the acceleration that the sensors then report."""
        task, layout = self.task, state.layout
        # Buttons stand at least .4 apart: the nearest one cannot change within a step of contact.
        buttons = self._nearest_buttons(state.body, layout) if task.buttons else ()
        boxes = gremlins.boxes(layout)
        around = Surroundings(
            drive=action[0],
            turn=action[1],
            seconds=self._seconds(state),
            buttons=tuple((place[0], place[1]) for place in buttons),
            gremlins=tuple(gremlins.Box(*(x[each] for x in boxes)) for each in range(task.gremlins)),
            gremlin_travel=state.parameters.gremlin_travel,
        )
        return move(task, state.body, around)

    def _nearest_buttons(self, body: Body, layout: Layout) -> tuple[Float[Array, "2"], Float[Array, "2"]]:
        """The button nearest to the sphere, and the one nearest to the arrow."""
        ahead_x = body.x + robot.ARROW_OFFSET * jnp.cos(body.heading)
        ahead_y = body.y + robot.ARROW_OFFSET * jnp.sin(body.heading)
        return _nearest(layout.buttons, body.x, body.y), _nearest(layout.buttons, ahead_x, ahead_y)

    def _pressed(self, body: Body, layout: Layout) -> Bool[Array, " buttons"]:
        """Which buttons any part of the robot touches."""
        x, y = layout.buttons[:, 0], layout.buttons[:, 1]
        sphere = point.touch_sphere(body, x, y, self.task.button_size).distance < 0
        return sphere | (point.touch_arrow(body, x, y, self.task.button_size).distance < 0)

    def _goal_position(self, layout: Layout) -> Float[Array, "2"]:
        return layout.goal if self.task.goal == "goal" else layout.buttons[layout.goal_button]

    def _goal_distance(self, layout: Layout, body: Body) -> Float[Array, ""]:
        return _distance(self._goal_position(layout), body)

    def _charged(self, state: State, pressed: Bool[Array, " buttons"]) -> dict[str, Bool[Array, ""]]:
        """In a hazard, on a wrong button while buttons are live, against a gremlin."""
        task, layout = self.task, state.layout
        sources = {}
        if task.hazards:
            sources["hazards"] = jnp.any(_distance(layout.hazards, state.body) < state.parameters.hazard_size)
        if task.buttons:
            wrong = pressed & (jnp.arange(task.buttons) != layout.goal_button)
            sources["buttons"] = jnp.any(wrong) & (state.timer == 0)
        if task.gremlins:
            travel, seconds = state.parameters.gremlin_travel, self._seconds(state)
            sources["gremlins"] = jnp.any(gremlins.touching(task, state.body, gremlins.boxes(layout), travel, seconds))
        return sources

    def _seconds(self, state: State) -> Float[Array, ""]:
        return state.time.astype(state.body.x.dtype) * robot.STEP_SECONDS

    def _next_goal(self, state: State) -> tuple[Layout, Int[Array, ""]]:
        """The layout after a success: the next prepared goal that is clear of the robot, or another button."""
        task, layout, successors = self.task, state.layout, state.successors
        if task.goal == "button":
            jump = successors.button_jumps[state.cursor]
            return layout._replace(goal_button=(layout.goal_button + jump) % task.buttons), (state.cursor + 1) % QUEUE
        apart = _distance(successors.goals, state.body)
        turn = (jnp.arange(QUEUE, dtype=jnp.int32) - state.cursor) % QUEUE
        wait = jnp.where(apart >= task.goal_keepout + task.robot_keepout, turn, QUEUE)
        chosen = (state.cursor + jnp.min(wait)) % QUEUE
        return layout._replace(goal=successors.goals[chosen]), (chosen + 1) % QUEUE

    def _observe(self, state: State, acceleration: point.Generalized) -> Float[Array, " obs"]:
        task, layout, body = self.task, state.layout, state.body
        readings = point.sensors(body, acceleration)
        place, direction = (body.x, body.y), (jnp.cos(body.heading), jnp.sin(body.heading))
        points = {
            "buttons": layout.buttons,
            "goal": self._goal_position(layout)[None],
            "gremlins": gremlins.positions(layout, state.parameters.gremlin_travel, self._seconds(state)),
            "hazards": layout.hazards,
        }
        for kind in task.lidars:
            scan = lidar(points[kind], place, direction, state.parameters.lidar_reach, task.lidar_bins, jnp)
            readings[f"{kind}_lidar"] = jnp.where(state.timer > 0, 0, scan) if kind == "buttons" else scan
        return jnp.concatenate([readings[name] for name in sorted(readings)])


def _distance(points: Float[Array, "*n 2"], body: Body) -> Float[Array, "*n"]:
    """From the robot. In components: a sum over an axis of two would be a launch of its own on an accelerator."""
    x, y = points[..., 0] - body.x, points[..., 1] - body.y
    return jnp.sqrt(x * x + y * y)


def _nearest(points: Float[Array, "n 2"], x: Float[Array, ""], y: Float[Array, ""]) -> Float[Array, "2"]:
    return points[jnp.argmin((points[:, 0] - x) ** 2 + (points[:, 1] - y) ** 2)]
