"""The JAX engine: placement, lidar, rules, cost, determinism."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qcrl
from qcrl.envs.point import physics as point
from qcrl.envs.point.jax_engine import PointEnv, State
from qcrl.envs.point.layout import Layout
from qcrl.envs.point.lidar import lidar
from qcrl.envs.point.placement import Successors, sample_layout
from qcrl.envs.point.tasks import TASKS, Task


def layout_of(
    task: Task, robot=(0.0, 0.0), heading=0.0, goal=(9.0, 9.0), buttons=(), hazards=(), gremlins=(), button=0
):
    """A hand-made layout for a scripted situation; objects that are not given stand far away."""
    far = jnp.stack([100.0 + jnp.arange(8.0) * 10, jnp.full(8, 100.0)], axis=1)

    def place(points, count):
        return jnp.concatenate([jnp.asarray(points, float).reshape(-1, 2), far])[:count]

    return Layout(
        jnp.asarray(robot, float),
        jnp.asarray(heading, float),
        jnp.asarray(goal, float),
        place(buttons, task.buttons),
        place(hazards, task.hazards),
        place(gremlins, task.gremlins),
        jnp.zeros(task.gremlins),
        jnp.asarray(button, jnp.int32),
    )


SUCCESSORS = Successors(
    jnp.stack(jnp.meshgrid(jnp.linspace(-1, 1, 8), jnp.linspace(-1, 1, 8)), axis=-1).reshape(64, 2),
    jnp.ones(64, jnp.int32),
)


def start(id: str, **where) -> tuple[PointEnv, State]:
    env = qcrl.make(id)
    successors = Successors(
        SUCCESSORS.goals if env.task.goal == "goal" else jnp.zeros((0, 2)),
        SUCCESSORS.button_jumps if env.task.buttons else jnp.zeros(0, jnp.int32),
    )
    return env, compiled(id, "start")(layout_of(env.task, **where), successors)[0]


@cache
def compiled(id: str, function: str):
    return jax.jit(getattr(qcrl.make(id), function))


def step(env, state, action=(0.0, 0.0)):
    return compiled(env.id, "step")(state, jnp.asarray(action, float))


@pytest.mark.parametrize("resets", [5_000, pytest.param(25_000, marks=pytest.mark.large)])
@pytest.mark.parametrize("id", TASKS)
def test_placement_keeps_its_distances_and_bounds(id, resets):
    task = TASKS[id]
    keys = jax.random.split(jax.random.key(7), resets)
    layout, successors = jax.device_get(jax.jit(jax.vmap(lambda key: sample_layout(task, key)))(keys))
    placed = []
    for kind, count, keepout, fixed in task.placement:
        if not count:
            continue
        points = np.asarray(getattr(layout, kind)).reshape(resets, count, 2)
        if fixed:
            np.testing.assert_allclose(points, np.broadcast_to(fixed, points.shape))
        else:
            assert np.abs(points).max() <= task.extent - keepout
            # Uniform placement uses the whole square.
            assert np.abs(points).max() > task.extent - keepout - 0.01
        placed += [(points[:, i], keepout) for i in range(count)]
    for i, (a, keepout_a) in enumerate(placed):
        for b, keepout_b in placed[:i]:
            assert np.linalg.norm(a - b, axis=-1).min() >= keepout_a + keepout_b - 1e-6
    assert np.abs(np.mean(np.exp(1j * layout.heading))) < 5 / math.sqrt(resets)
    if task.goal == "goal":
        goals = successors.goals
        for kind, count, keepout, _ in task.placement[2:]:
            if count:
                gaps = np.linalg.norm(goals[:500, :, None] - getattr(layout, kind)[:500, None], axis=-1)
                assert gaps.min() >= keepout + task.goal_keepout - 1e-6
        # For any robot position one of two points this far apart is legal.
        spread = np.linalg.norm(goals[:500, :, None] - goals[:500, None], axis=-1).max((1, 2))
        assert spread.min() > 2 * (task.goal_keepout + task.robot_keepout)


def plain_lidar(points, position, heading, reach, bins):
    """The definition, one object at a time."""
    scan = np.zeros(bins)
    for x, y in points:
        dx, dy = x - position[0], y - position[1]
        signal = max(0.0, reach - math.hypot(dx, dy)) / reach
        angle = (math.atan2(dy, dx) - heading) % (2 * math.pi) / (2 * math.pi / bins)
        base = int(angle) % bins
        alias = angle - int(angle)
        for bin, value in ((base, signal), (base + 1, alias * signal), (base - 1, (1 - alias) * signal)):
            scan[bin % bins] = max(scan[bin % bins], value)
    return scan


def test_lidar_follows_its_definition_turns_with_the_robot_and_ignores_order():
    rng = np.random.default_rng(3)
    for _ in range(50):
        points, position = rng.normal(size=(4, 2)), rng.normal(size=2)
        heading = rng.uniform(-math.pi, math.pi)
        scan = lidar(points, position, np.array([math.cos(heading), math.sin(heading)]), 3.0, 16, np)
        np.testing.assert_allclose(scan, plain_lidar(points, position, heading, 3.0, 16), atol=1e-9)
        turned = heading + 2 * math.pi / 16
        shifted = lidar(points, position, np.array([math.cos(turned), math.sin(turned)]), 3.0, 16, np)
        np.testing.assert_allclose(shifted, np.roll(scan, -1), atol=1e-9)
        np.testing.assert_allclose(
            lidar(points[::-1], position, np.array([math.cos(heading), math.sin(heading)]), 3.0, 16, np), scan
        )


@pytest.mark.parametrize(("id", "size"), [("SimpleButtonEnv-v0", 60), ("DynamicEnv-v0", 44), ("GremlinEnv-v0", 60)])
def test_observation_layout(id, size):
    env, state = start(id, heading=0.5, goal=(1.0, 0.0))
    _, result = step(env, state)
    assert result.obs.shape == (size,) == (env.observation_size,)
    np.testing.assert_allclose(result.obs[:3], [0, 0, 9.81], atol=1e-4)
    magnetometer = result.obs[-6:-3]
    np.testing.assert_allclose(magnetometer, [-0.5 * math.sin(0.5), -0.5 * math.cos(0.5), 0], atol=1e-5)


def test_goal_gives_one_plus_the_way_made_and_moves_to_a_legal_place():
    env, state = start("DynamicEnv-v0", robot=(0.0, 0.0), goal=(0.301, 0.0))
    state = state._replace(body=state.body._replace(vx=jnp.array(0.5)))
    after, result = step(env, state, (1.0, 0.0))
    way = 0.301 - float(jnp.linalg.norm(jnp.array([0.301, 0.0]) - jnp.stack(after.body[:2])))
    assert float(result.reward) == pytest.approx(1 + way, abs=1e-5)
    assert (
        float(jnp.linalg.norm(after.layout.goal - jnp.stack(after.body[:2])))
        >= env.task.goal_keepout + env.task.robot_keepout
    )
    assert np.any(np.all(np.isclose(after.layout.goal, after.successors.goals), axis=1))
    _, result = step(env, after)
    assert float(result.reward) < 0.1  # the jump of the goal itself is not rewarded


def test_next_goals_are_legal_wherever_the_robot_stands():
    env = qcrl.make("DynamicEnv-v0")
    states, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(1), 2000))
    x, y = states.layout.goal.T
    at_goal = states._replace(body=states.body._replace(x=x, y=y))
    after, result = jax.jit(jax.vmap(env.step))(at_goal, jnp.zeros((2000, 2)))
    assert bool(jnp.all(result.reward > 0.9))
    gap = jnp.linalg.norm(after.layout.goal - jnp.stack(after.body[:2], axis=1), axis=1)
    assert float(gap.min()) >= env.task.goal_keepout + env.task.robot_keepout


@pytest.mark.parametrize(("distance", "cost"), [(0.29, 1), (0.31, 0)])
def test_hazard_cost_is_the_robot_centre_inside(distance, cost):
    env, state = start("DynamicEnv-v0", hazards=[(distance, 0.0)])
    after, result = step(env, state)
    assert float(result.cost) == cost
    assert float(env.sources(after)["hazards"]) == cost


def test_wrong_button_costs_while_live_and_the_right_one_pays_and_darkens_the_lidar():
    touching = [(-0.198, 0.0), (5.0, 5.0)]
    env, state = start("SimpleButtonEnv-v0", buttons=touching, button=1)
    after, result = step(env, state)
    assert float(result.cost) == 1
    assert int(after.timer) == 0

    env, state = start("SimpleButtonEnv-v0", buttons=touching, button=0)
    after, result = step(env, state)
    assert float(result.cost) == 0
    assert float(result.reward) > 0.99
    assert int(after.layout.goal_button) == 1
    assert int(after.timer) == env.task.button_delay
    np.testing.assert_array_equal(result.obs[3:19], 0)  # the buttons lidar
    costs = []
    for _ in range(12):
        # Hold the robot against the button, which is now the wrong one: ten steps are free.
        after = after._replace(body=state.body)
        after, result = step(env, after)
        costs.append(float(result.cost))
    assert costs == [0.0] * 10 + [1.0] * 2


def test_next_button_is_any_other_one_equally_often():
    env = qcrl.make("DynamicButtonEnv-v0")
    keys = jax.random.split(jax.random.key(5), 6000)
    _, successors = jax.jit(jax.vmap(lambda key: sample_layout(env.task, key)))(keys)
    jumps = np.bincount(np.asarray(successors.button_jumps[:, 0]), minlength=6)
    assert jumps[0] == 0
    assert np.abs(jumps[1:] - 1200).max() < 5 * math.sqrt(1200)


def test_gremlin_costs_and_slows_a_robot_that_pushes_through():
    env, state = start("GremlinEnv-v0", robot=(0.0, 0.0), gremlins=[(0.22, -0.35)])
    after, result = step(env, state._replace(body=state.body._replace(vx=jnp.array(1.0))))
    free_env, free_state = start("GremlinEnv-v0", robot=(0.0, 0.0))
    free, free_result = step(free_env, free_state._replace(body=free_state.body._replace(vx=jnp.array(1.0))))
    assert (float(result.cost), float(free_result.cost)) == (1, 0)
    assert float(after.body.vx) < float(free.body.vx) - 0.005


def test_episode_is_truncated_after_the_horizon_and_never_terminates():
    env, state = start("DynamicEnv-v0")
    _, before = step(env, state._replace(time=jnp.asarray(998, jnp.int32)))
    _, last = step(env, state._replace(time=jnp.asarray(999, jnp.int32)))
    assert (bool(before.truncated), bool(last.truncated)) == (False, True)
    assert not bool(last.terminated)


@pytest.mark.parametrize("id", ["DynamicEnv-v0", "DynamicButtonEnv-v0"])
def test_same_key_same_episode_and_actions_are_clipped(id):
    env = qcrl.make(id)
    first, second = (compiled(id, "reset")(jax.random.key(4)) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    other = compiled(id, "reset")(jax.random.key(5))
    assert not np.array_equal(first[1], other[1])
    _, clipped = step(env, first[0], (7.0, -9.0))
    _, full = step(env, first[0], (1.0, -1.0))
    np.testing.assert_array_equal(clipped.obs, full.obs)


def test_parameters_differ_within_a_batch():
    env = qcrl.make("DynamicEnv-v0")
    layout = layout_of(env.task, hazards=[(0.4, 0.0)])

    @jax.jit
    @jax.vmap
    def cost(hazard_size):
        state, _ = env.start(
            layout,
            Successors(SUCCESSORS.goals, jnp.zeros(0, jnp.int32)),
            env.parameters._replace(hazard_size=hazard_size),
        )
        return env.step(state, jnp.zeros(2))[1].cost

    np.testing.assert_array_equal(cost(jnp.array([0.3, 0.5])), [0, 1])


def test_a_fifth_task_is_only_a_description():
    task = Task(id="Crowd-v0", description="", goal="goal", extent=2.0, hazards=2, gremlins=1, lidar_bins=8)
    env = PointEnv(task)
    state, obs = jax.jit(env.reset)(jax.random.key(0))
    _, result = jax.jit(env.step)(state, jnp.ones(2))
    assert obs.shape == result.obs.shape == (12 + 3 * 8,)
    from qcrl.envs.point.mujoco_engine import MujocoEngine

    engine = MujocoEngine(task)
    assert engine.reset(np.random.default_rng(0)).shape == (36,)
    assert engine.step([1.0, 1.0]).obs.shape == (36,)


def test_robot_constants_come_from_its_geometry():
    assert pytest.approx(0.00518879, rel=1e-6) == point.MASS
    assert pytest.approx(0.01927232, rel=1e-6) == point.COM_OFFSET
    assert pytest.approx(2.6494596e-05, rel=1e-6) == point.COM_INERTIA


def test_unknown_id_lists_the_known_ones():
    with pytest.raises(qcrl.UserError, match=r"'Nope-v0'.*DynamicEnv-v0.*TwoPathEnv-v0"):
        qcrl.make("Nope-v0")
