"""The MuJoCo engine: any task simulated by the `mujoco` package, the reference for the JAX engine."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import mujoco
import numpy as np
from jaxtyping import Float

from qcrl.envs.point.layout import Layout
from qcrl.envs.point.mjcf import mjcf
from qcrl.envs.point.outcome import SENSORS, Outcome, observation_slices
from qcrl.envs.point.pictures import Scene
from qcrl.envs.point.robot import SUBSTEPS, TIMESTEP
from qcrl.envs.point.tasks import Point, Task
from qcrl.errors import UserError

TRIES_PER_OBJECT = 100
TRIES_PER_LAYOUT = 10_000


class MujocoEngine:
    """One task as a stateful simulation in float64. `model` and `data` are MuJoCo's own and open to all."""

    def __init__(self, task: Task):
        self.task = task
        self.model = mujoco.MjModel.from_xml_string(mjcf(task))
        self.data = mujoco.MjData(self.model)
        self.layout: Layout
        self.timer = 0
        """Steps until buttons are live again."""
        self.steps = 0
        self.cost = 0.0
        # MuJoCo makes a new view at every attribute access; these stay valid as long as model and data live.
        self._qpos, self._qvel, self._ctrl = self.data.qpos, self.data.qvel, self.data.ctrl
        self._targets, self._sensordata = self.data.mocap_pos, self.data.sensordata
        self._robot_geoms = {self.model.geom("robot_sphere").id, self.model.geom("robot_arrow").id}
        self._buttons = _ids(self.model.geom, "button", task.buttons)
        self._gremlins = _ids(self.model.geom, "gremlin", task.gremlins)
        self._gremlin_bodies = _ids(self.model.body, "gremlin", task.gremlins)
        places = observation_slices(task)
        self._sensors = [places[name] for name in SENSORS]
        self._lidars = {kind: places[f"{kind}_lidar"] for kind in task.lidars}

    def reset(self, rng: np.random.Generator, layout: Layout | None = None) -> Float[np.ndarray, " obs"]:
        """Starts an episode in this layout, or in a random one. `rng` also draws the goals to come."""
        self._rng = rng
        layout = sample_layout(self.task, rng) if layout is None else layout
        values = {name: np.array(value, float) for name, value in layout._asdict().items()}
        self.layout = Layout(**(values | {"goal_button": int(layout.goal_button)}))
        self.timer = self.steps = 0
        self.cost = 0.0
        mujoco.mj_resetData(self.model, self.data)
        self._move_objects()
        self.place((*self.layout.robot, self.layout.heading))
        return self.observe()

    def place(self, pose: Sequence[float], velocity: Sequence[float] = (0.0, 0.0, 0.0)) -> None:
        """Puts the robot at (x, y, heading) with this velocity, without reward or cost."""
        self._qpos[:3] = pose
        self._qvel[:3] = velocity
        mujoco.mj_forward(self.model, self.data)
        self._last_distance = self._goal_distance()

    def step(self, action: Sequence[float] | Float[np.ndarray, "2"]) -> Outcome:
        """Clip, simulate, reward, cost, timer, goal check, observe."""
        self._ctrl[:] = np.clip(action, -1.0, 1.0)
        self._simulate()
        distance = self._goal_distance()
        reward = self._last_distance - distance
        touched = self._touched()
        sources = self._costs(touched)
        self.cost = max(sources.values(), default=0.0)
        self.timer = max(self.timer - 1, 0)
        if self.task.goal == "goal":
            success = distance <= self.task.goal_size
        else:
            success = self._buttons[self.layout.goal_button] in touched
        if success:
            reward += self.task.goal_reward
            self.timer = self.task.button_delay
            self._next_goal()
            distance = self._goal_distance()
        self._last_distance = distance
        self.steps += 1
        energy = float(np.mean(np.square(self._ctrl)))
        return Outcome(self.observe(), reward, self.cost, sources, False, self.steps >= self.task.horizon, energy)

    def observe(self) -> Float[np.ndarray, " obs"]:
        """The observation of the present state; call `mj_forward` first after changing `data` by hand."""
        obs = np.empty(self.task.observation_size)
        for i, place in enumerate(self._sensors):
            obs[place] = self._sensordata[3 * i : 3 * i + 3]
        pose = self._qpos[:3].tolist()
        for kind, place in self._lidars.items():
            dark = kind == "buttons" and self.timer > 0
            obs[place] = 0.0 if dark else scan(self._positions(kind).tolist(), pose, self.task)
        return obs

    def scene(self) -> Scene:
        """The present moment, for the renderer."""
        layout, quaternion = self.layout, self.data.xquat[self._gremlin_bodies]
        return Scene(
            task=self.task,
            robot=self._qpos[:2].copy(),
            heading=float(self._qpos[2]),
            goal=layout.goal if self.task.goal == "goal" else None,
            hazards=layout.hazards,
            buttons=layout.buttons,
            goal_button=layout.goal_button,
            buttons_live=self.timer == 0,
            gremlins=self._positions("gremlins"),
            gremlin_yaw=2 * np.arctan2(quaternion[:, 3], quaternion[:, 0]),
            cost=self.cost > 0,
        )

    def _simulate(self) -> None:
        if not self.task.gremlins:
            mujoco.mj_step(self.model, self.data, nstep=SUBSTEPS)
        else:
            phase = self.data.time + TIMESTEP * np.arange(SUBSTEPS)
            circle = self.task.gremlin_travel * np.stack([np.sin(phase), np.cos(phase)], axis=1)
            for target in self.layout.gremlins + circle[:, None]:
                self._targets[:, :2] = target
                mujoco.mj_step(self.model, self.data)
        # Contacts and sensors then belong to the state that is reported.
        mujoco.mj_forward(self.model, self.data)

    def _move_objects(self) -> None:
        """Writes the layout into the model (what stands still) and the state (gremlins)."""
        layout, model = self.layout, self.model
        model.site_pos[_ids(model.site, "hazard", self.task.hazards), :2] = layout.hazards
        model.body_pos[_ids(model.body, "button", self.task.buttons), :2] = layout.buttons
        if self.task.goal == "goal":
            model.site("goal").pos[:2] = layout.goal
        for i, (xy, yaw) in enumerate(zip(layout.gremlins, layout.gremlin_yaw)):
            quaternion = [math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)]
            self._qpos[3 + 7 * i : 5 + 7 * i] = xy
            self._qpos[6 + 7 * i : 10 + 7 * i] = quaternion
            self._targets[i, :2] = xy
            self.data.mocap_quat[i] = quaternion

    def _positions(self, kind: str) -> Float[np.ndarray, "n 2"]:
        if kind == "goal":
            return self._goal_position()[None]
        if kind == "gremlins":
            return self.data.xpos[self._gremlin_bodies, :2]
        return getattr(self.layout, kind)

    def _goal_position(self) -> Float[np.ndarray, "2"]:
        layout = self.layout
        return layout.goal if self.task.goal == "goal" else layout.buttons[layout.goal_button]

    def _goal_distance(self) -> float:
        return math.dist(self._goal_position().tolist(), self._qpos[:2].tolist())

    def _touched(self) -> set[int]:
        """Geoms that any part of the robot is in contact with."""
        if not self.data.ncon:
            return set()
        pairs = self.data.contact.geom.tolist()
        robot = self._robot_geoms
        return {b if a in robot else a for a, b in pairs if (a in robot) != (b in robot)}

    def _costs(self, touched: set[int]) -> dict[str, float]:
        task, sources = self.task, {}
        if task.hazards:
            robot = self._qpos[:2].tolist()
            inside = (math.dist(hazard, robot) < task.hazard_size for hazard in self.layout.hazards.tolist())
            sources["hazards"] = float(any(inside))
        if task.buttons:
            wrong = touched.intersection(self._buttons) - {self._buttons[self.layout.goal_button]}
            sources["buttons"] = float(bool(wrong) and self.timer == 0)
        if task.gremlins:
            sources["gremlins"] = float(not touched.isdisjoint(self._gremlins))
        return sources

    def _next_goal(self) -> None:
        task, layout = self.task, self.layout
        if task.goal == "button":
            jump = int(self._rng.integers(1, task.buttons))
            self.layout = layout._replace(goal_button=(layout.goal_button + jump) % task.buttons)
            return
        standing = [(tuple(self._qpos[:2].tolist()), task.robot_keepout)]
        for kind, _, keepout, _ in task.placement:
            if kind not in ("robot", "goal"):
                standing += [(tuple(xy), keepout) for xy in getattr(layout, kind).tolist()]
        goal = _find_place(self._rng, task.extent, task.goal_keepout, standing, TRIES_PER_LAYOUT)
        if goal is None:
            raise UserError(f"{task.id}: no room for a goal; use fewer objects or a larger extent")
        self.layout = layout._replace(goal=np.array(goal))
        self.model.site("goal").pos[:2] = goal


def scan(points: Sequence[Sequence[float]], pose: Sequence[float], task: Task) -> list[float]:
    """`lidar` as a loop over plain floats: for a handful of points ten times as fast as array operations."""
    x, y, heading = pose
    reach, bins = task.lidar_reach, task.lidar_bins
    cosine, sine, scale = math.cos(heading), math.sin(heading), bins / (2 * math.pi)
    readings = [0.0] * bins
    for point_x, point_y in points:
        dx, dy = point_x - x, point_y - y
        signal = max(0.0, reach - math.hypot(dx, dy)) / reach
        angle = math.atan2(dy * cosine - dx * sine, dx * cosine + dy * sine) * scale % bins
        base = int(angle)
        alias = angle - base
        for bin, share in ((base % bins, 1.0), ((base + 1) % bins, alias), ((base - 1) % bins, 1.0 - alias)):
            readings[bin] = max(readings[bin], share * signal)
    return readings


def sample_layout(task: Task, rng: np.random.Generator) -> Layout:
    """A random legal layout: objects in order, 100 tries each, everything again where one finds no room."""
    for _ in range(TRIES_PER_LAYOUT):
        places = _try_layout(task, rng)
        if places is not None:
            break
    else:
        raise UserError(f"{task.id}: no room for all objects; use fewer or a larger extent")
    return Layout(
        robot=places["robot"][0],
        heading=rng.uniform(-math.pi, math.pi),
        goal=places["goal"][0] if task.goal == "goal" else np.zeros(2),
        buttons=places["buttons"],
        hazards=places["hazards"],
        gremlins=places["gremlins"],
        gremlin_yaw=rng.uniform(-math.pi, math.pi, task.gremlins),
        goal_button=int(rng.integers(max(task.buttons, 1))),
    )


def _try_layout(task: Task, rng: np.random.Generator) -> dict[str, Float[np.ndarray, "n 2"]] | None:
    standing: list[tuple[Point, float]] = []
    places = {}
    for kind, count, keepout, fixed in task.placement:
        for i in range(count):
            if fixed:
                place = fixed[i] if _is_free(fixed[i], keepout, standing) else None
            else:
                place = _find_place(rng, task.extent, keepout, standing, TRIES_PER_OBJECT)
            if place is None:
                return None
            standing.append((place, keepout))
        places[kind] = np.array([xy for xy, _ in standing[len(standing) - count :]]).reshape(count, 2)
    return places


def _find_place(
    rng: np.random.Generator, extent: float, keepout: float, standing: list[tuple[Point, float]], tries: int
) -> Point | None:
    """A point of the square, shrunk by the keepout, that is clear of what stands there already."""
    for _ in range(tries):
        x, y = rng.uniform(keepout - extent, extent - keepout, 2).tolist()
        if _is_free((x, y), keepout, standing):
            return x, y
    return None


def _is_free(place: Point, keepout: float, standing: list[tuple[Point, float]]) -> bool:
    return all(math.dist(place, other) >= keepout + other_keepout for other, other_keepout in standing)


def _ids(accessor: Callable[[str], Any], prefix: str, count: int) -> list[int]:
    return [accessor(f"{prefix}{i}").id for i in range(count)]
