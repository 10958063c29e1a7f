"""The MuJoCo engine against closed forms, and its rules in scripted situations."""

import dataclasses
import math

import mujoco
import numpy as np
import pytest

from qcrl import UserError
from qcrl.envs.point import mujoco_engine
from qcrl.envs.point.layout import Layout
from qcrl.envs.point.lidar import lidar
from qcrl.envs.point.mujoco_engine import MujocoEngine, sample_layout, scan
from qcrl.envs.point.outcome import observation_slices
from qcrl.envs.point.scripted import seek_goal
from qcrl.envs.point.tasks import TASKS, Task

SIMPLE, DYNAMIC, GREMLIN, BUTTONS = (
    TASKS[f"{name}Env-v0"] for name in ("SimpleButton", "Dynamic", "Gremlin", "DynamicButton")
)
SPHERE_MASS, ARROW_MASS = 4 / 3 * math.pi * 0.1**3, 0.1**3
MASS = SPHERE_MASS + ARROW_MASS
all_tasks = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def started(task: Task, seed: int = 0, layout: Layout | None = None) -> MujocoEngine:
    engine = MujocoEngine(task)
    engine.reset(np.random.default_rng(seed), layout)
    return engine


def empty_layout(**places) -> Layout:
    none = np.zeros((0, 2))
    blank = Layout(np.zeros(2), 0.0, np.array([4.0, 4.0]), none, none, none, np.zeros(0), 0)
    return blank._replace(**places)


def reading(engine: MujocoEngine, name: str) -> np.ndarray:
    return engine.observe()[observation_slices(engine.task)[name]]


def press(engine: MujocoEngine, button: int) -> mujoco_engine.Outcome:
    """Pushes the arrow against a button for one step."""
    x, y = engine.layout.buttons[button]
    engine.place((x - 0.245, y, 0.0))
    return engine.step((1.0, 0.0))


# Physics


def test_mass_centre_and_inertia_follow_from_the_geometry():
    engine = started(DYNAMIC)
    body = engine.model.body("robot")
    centre = ARROW_MASS * 0.1 / MASS
    vertical = SPHERE_MASS * (2 / 5 * 0.1**2 + centre**2) + ARROW_MASS * (0.1**2 / 6 + (0.1 - centre) ** 2)
    rotation = np.zeros(9)
    mujoco.mju_quat2Mat(rotation, body.iquat)
    inertia = rotation.reshape(3, 3) @ np.diag(body.inertia) @ rotation.reshape(3, 3).T
    np.testing.assert_allclose(body.mass, MASS, rtol=1e-12)
    np.testing.assert_allclose(body.ipos, [centre, 0, 0], atol=1e-12)
    np.testing.assert_allclose(inertia[2, 2], vertical, rtol=1e-9)
    assert (MASS, centre, vertical) == pytest.approx((0.00518879, 0.01927232, 2.6494596e-05), rel=1e-6)


def test_full_drive_accelerates_as_the_discrete_closed_form():
    """(m + h c) dv = h (F - c v) with F = .3 * .05, c = .01: Euler with implicit damping."""
    engine = started(DYNAMIC)
    engine.place((5.0, 5.0, 0.0))
    speed = 0.0
    for _ in range(50):
        engine.step((1.0, 0.0))
        for _ in range(10):
            speed += 0.002 * (0.015 - 0.01 * speed) / (MASS + 0.002 * 0.01)
    np.testing.assert_allclose(reading(engine, "velocimeter"), [speed, 0, 0], atol=1e-9)
    assert 1.2 < speed < 1.5


def test_sensors_report_the_placed_state_in_the_robot_frame():
    engine = started(DYNAMIC)
    heading, (vx, vy, spin) = 0.7, (0.3, -0.2, 1.1)
    engine.place((0.1, 0.2, heading), (vx, vy, spin))
    cosine, sine = math.cos(heading), math.sin(heading)
    np.testing.assert_allclose(reading(engine, "gyro"), [0, 0, spin], atol=1e-12)
    np.testing.assert_allclose(reading(engine, "magnetometer"), [-0.5 * sine, -0.5 * cosine, 0], atol=1e-12)
    np.testing.assert_allclose(
        reading(engine, "velocimeter"), [vx * cosine + vy * sine, vy * cosine - vx * sine, 0], atol=1e-12
    )
    engine.place((0.1, 0.2, heading))
    np.testing.assert_allclose(reading(engine, "accelerometer"), [0, 0, 9.81], atol=1e-12)
    engine.data.ctrl[:] = 0.02, 0.0
    mujoco.mj_forward(engine.model, engine.data)
    np.testing.assert_allclose(reading(engine, "accelerometer"), [0.3 * 0.02 / MASS, 0, 9.81], atol=1e-9)


def test_the_model_leaves_out_only_a_floor_contact_without_force():
    engine = started(DYNAMIC)
    xml = mujoco_engine.mjcf(DYNAMIC)
    with_floor = mujoco.MjModel.from_xml_string(xml.replace('<exclude body1="world" body2="robot"/>', ""))
    data = mujoco.MjData(with_floor)
    data.qpos[:] = engine.data.qpos
    rng = np.random.default_rng(1)
    for action in rng.uniform(-1, 1, (200, 2)):
        engine.step(action)
        data.ctrl[:] = action
        mujoco.mj_step(with_floor, data, nstep=10)
    assert data.ncon == 1
    np.testing.assert_array_equal(engine.data.qpos, data.qpos)


GREMLIN_ALONE = dataclasses.replace(
    GREMLIN, id="one still gremlin", extent=5.0, hazards=0, gremlins=1, gremlin_travel=0.0
)


@pytest.mark.parametrize(
    ("offset", "contacts", "way_lost"),
    [(0.0, (14, 26), (0.2, 0.45)), (0.08, (14, 24), (0.15, 0.3)), (0.15, (8, 16), (0.05, 0.2))],
)
def test_a_gremlin_gives_way_and_takes_some(offset, contacts, way_lost):
    """Measured elsewhere: 18, 19, 12 contact steps and .28, .22, .13 m lost. A rigid box would stop the robot."""
    layout = empty_layout(robot=np.array([-1.0, offset]), gremlins=np.zeros((1, 2)), gremlin_yaw=np.zeros(1))
    met, alone = started(GREMLIN_ALONE, layout=layout), started(DYNAMIC)
    alone.place((-1.0, 4.0, 0.0))
    touched = 0.0
    for _ in range(150):
        touched += met.step((1.0, 0.0)).sources["gremlins"]
        alone.step((1.0, 0.0))
    assert contacts[0] <= touched <= contacts[1]
    assert way_lost[0] < alone.data.qpos[0] - met.data.qpos[0] < way_lost[1]


def test_gremlins_hover_and_trail_their_circle():
    """Lag 2 * .95 * .02 * 1.5^2 s behind a target that moves at .35 m/s: the weld's damping over its stiffness."""
    engine = started(GREMLIN)
    engine.place((9.0, 9.0, 0.0))
    for _ in range(150):
        engine.step((0.0, 0.0))
    seconds = engine.data.time
    target = engine.layout.gremlins + 0.35 * np.array([math.sin(seconds), math.cos(seconds)])
    lag = np.linalg.norm(engine.scene().gremlins - target, axis=1)
    np.testing.assert_allclose(lag, 0.35 * 2 * 0.95 * 0.02 * 1.5**2, rtol=0.1)
    heights = [engine.data.body(f"gremlin{i}").xpos[2] for i in range(3)]
    np.testing.assert_allclose(heights, 0.2, atol=0.002)
    np.testing.assert_allclose(np.cos(engine.scene().gremlin_yaw), np.cos(engine.layout.gremlin_yaw), atol=1e-6)


# Placement


@all_tasks
def test_layouts_are_legal(task):
    rng = np.random.default_rng(0)
    layouts = [sample_layout(task, rng) for _ in range(500)]
    for layout in layouts:
        places, keepouts = [], []
        for kind, count, keepout, fixed in task.placement:
            points = np.reshape(getattr(layout, kind), (-1, 2))[:count]
            assert len(points) == count
            if fixed:
                np.testing.assert_array_equal(points, fixed)
            else:
                assert np.all(np.abs(points) <= task.extent - keepout)
            places.extend(points)
            keepouts.extend([keepout] * count)
        apart = np.linalg.norm(np.array(places)[:, None] - np.array(places), axis=2)
        needed = np.add.outer(keepouts, keepouts)
        assert np.all((apart >= needed) | np.eye(len(places), dtype=bool))
        assert 0 <= layout.goal_button < max(task.buttons, 1)
    headings = np.array([layout.heading for layout in layouts])
    assert np.all(np.histogram(headings, 4, (-math.pi, math.pi))[0] > 80)
    assert np.ptp([layout.robot[0] for layout in layouts]) > 1.5


def test_an_impossible_task_is_an_error(monkeypatch):
    monkeypatch.setattr(mujoco_engine, "TRIES_PER_LAYOUT", 3)
    crowded = dataclasses.replace(DYNAMIC, id="crowded", hazards=100)
    with pytest.raises(UserError, match="crowded: no room"):
        sample_layout(crowded, np.random.default_rng(0))


@all_tasks
def test_a_seed_fixes_the_whole_episode(task):
    def episode(seed):
        rng = np.random.default_rng(seed)
        engine = MujocoEngine(task)
        obs = engine.reset(rng)
        rows = [obs]
        for _ in range(60):
            outcome = engine.step(seek_goal(rows[-1], task, np))
            rows.append(outcome.obs)
        return np.array(rows)

    np.testing.assert_array_equal(episode(5), episode(5))
    assert not np.array_equal(episode(5)[0], episode(6)[0])


# Rules


@all_tasks
def test_lidar_loop_equals_the_shared_lidar(task):
    rng = np.random.default_rng(2)
    for _ in range(200):
        points = rng.uniform(-4, 4, (rng.integers(1, 7), 2))
        x, y, heading = rng.uniform(-4, 4, 3)
        direction = np.array([math.cos(heading), math.sin(heading)])
        expected = lidar(points, np.array([x, y]), direction, task.lidar_reach, task.lidar_bins, np)
        np.testing.assert_allclose(scan(points, (x, y, heading), task), expected, atol=1e-12)


def test_hazards_cost_inside_their_radius_only():
    engine = started(SIMPLE)
    for distance, cost in ((0.299, 1.0), (0.301, 0.0)):
        engine.place((-1.0 + distance, 1.0, 0.0))
        outcome = engine.step((0.0, 0.0))
        assert (outcome.cost, outcome.sources) == (cost, {"hazards": cost, "buttons": 0.0})


def test_dense_reward_is_the_way_made_towards_the_goal():
    engine = started(DYNAMIC)
    engine.place((5.0, 5.0, 0.3))
    before = math.dist(engine.layout.goal, (5.0, 5.0))
    total = sum(engine.step((0.5, 0.2)).reward for _ in range(40))
    assert total == pytest.approx(before - math.dist(engine.layout.goal, engine.data.qpos[:2]), abs=1e-12)
    assert abs(total) > 0.1


def test_a_reached_goal_pays_one_and_moves_to_a_legal_place():
    engine = started(GREMLIN)
    task = engine.task
    for _ in range(50):
        goal = engine.layout.goal
        engine.place((goal[0] + 0.301, goal[1], 0.0))
        assert engine.step((0.0, 0.0)).reward == 0.0
        assert engine.layout.goal is goal
        engine.place((goal[0] + 0.299, goal[1], 0.0))
        assert engine.step((0.0, 0.0)).reward == pytest.approx(1.0, abs=1e-3)
        new = engine.layout.goal
        assert np.all(np.abs(new) <= task.extent - task.goal_keepout)
        assert math.dist(new, engine.data.qpos[:2]) >= 0.705
        assert np.all(np.linalg.norm(engine.layout.hazards - new, axis=1) >= 0.61)
        assert np.all(np.linalg.norm(engine.layout.gremlins - new, axis=1) >= 0.705)
        scene = engine.scene()
        np.testing.assert_array_equal(scene.goal, new)


def test_buttons_touch_at_the_sum_of_the_radii_wherever_they_were_moved():
    engine = started(BUTTONS)
    wrong = (engine.layout.goal_button + 1) % 6
    x, y = engine.layout.buttons[wrong]
    for distance, cost in ((0.199, 1.0), (0.21, 0.0)):
        engine.place((x + distance, y, 0.0))
        assert engine.step((-1.0 if cost else 0.0, 0.0)).sources["buttons"] == cost


def test_a_press_gives_ten_free_steps_in_the_dark():
    engine = started(SIMPLE, seed=3)
    first = engine.layout.goal_button
    outcome = press(engine, first)
    assert outcome.reward == pytest.approx(1.0, abs=0.05)
    assert outcome.cost == 0.0
    assert engine.layout.goal_button == 1 - first
    assert not reading(engine, "buttons_lidar").any()
    for free_step in range(1, 11):
        assert engine.step((1.0, 0.0)).sources["buttons"] == 0.0
        assert reading(engine, "buttons_lidar").any() == (free_step == 10)
    outcome = engine.step((1.0, 0.0))
    assert outcome.sources == {"hazards": 0.0, "buttons": 1.0}


def test_the_next_button_is_any_of_the_others_with_equal_chance():
    engine = started(BUTTONS)
    jumps = []
    for _ in range(300):
        pressed = engine.layout.goal_button
        assert press(engine, pressed).reward > 0.9
        jumps.append((engine.layout.goal_button - pressed) % 6)
    counts = np.bincount(jumps, minlength=6)
    assert counts[0] == 0
    assert np.all(np.abs(counts[1:] - 60) < 4 * math.sqrt(60 * 0.8))


def test_buttons_stop_the_robot():
    engine = started(SIMPLE)
    engine.place((0.0, 1.0, 0.0))
    for _ in range(150):
        engine.step((1.0, 0.0))
    x, y = engine.data.qpos[:2]
    assert math.dist((x, y), (1.0, 1.0)) > 0.19


def test_an_episode_is_truncated_at_its_horizon_and_never_terminated():
    engine = started(dataclasses.replace(DYNAMIC, horizon=5))
    for _ in range(2):
        outcomes = [engine.step((0.0, 0.0)) for _ in range(5)]
        assert [outcome.truncated for outcome in outcomes] == [False] * 4 + [True]
        assert not any(outcome.terminated for outcome in outcomes)
        engine.reset(np.random.default_rng(1))


def test_a_reset_forgets_the_episode_before():
    engine = started(GREMLIN)
    layout = engine.layout
    for _ in range(30):
        engine.step((1.0, 1.0))
    np.testing.assert_array_equal(
        engine.reset(np.random.default_rng(0), layout), started(GREMLIN, layout=layout).observe()
    )
