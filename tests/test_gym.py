"""Gymnasium's API: its own checker, bad input, and vector environments against single ones."""

import dataclasses
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from qcrl import UserError
from qcrl.envs import ENVIRONMENT_IDS
from qcrl.envs.adapters import gym
from qcrl.envs.point.scripted import seek_goal
from qcrl.envs.point.tasks import TASKS

ENGINES = [*((env_id, "mujoco") for env_id in TASKS), ("DynamicEnv-v0", "jax"), ("TwoPathEnv-v0", "jax")]


def make(env_id: str = "DynamicEnv-v0", **options) -> gymnasium.Env:
    return gymnasium.make(f"qcrl/{env_id}", **options)


def run_python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("before", "name"), [("gymnasium", "qcrl:qcrl/"), ("gymnasium, qcrl", "qcrl/")])
def test_make_needs_an_import_of_qcrl_or_its_name(before, name):
    make = f"gymnasium.make('{name}DynamicEnv-v0', engine='mujoco')"
    assert run_python(f"import {before}; print({make}.reset(seed=0)[0].shape)").strip() == "(44,)"


def test_engines_are_imported_only_when_used():
    report = "print([name for name in ('jax', 'mujoco') if name in sys.modules])"
    program = f"import sys, gymnasium, qcrl; {report}; gymnasium.make('qcrl/GremlinEnv-v0').reset(); {report}"
    assert run_python(program).split("\n")[:2] == ["[]", "['mujoco']"]


def test_all_environments_are_registered_once():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gym.register_all()
    assert {id for id in gymnasium.registry if id.startswith("qcrl/")} == {f"qcrl/{id}" for id in ENVIRONMENT_IDS}


@pytest.mark.parametrize(("env_id", "engine"), ENGINES)
def test_gymnasium_checker_has_nothing_to_say(env_id, engine):
    env = make(env_id, engine=engine)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        check_env(env.unwrapped)


@pytest.mark.parametrize("env_id", TASKS)
def test_observations_stay_within_their_space_and_costs_are_the_union_of_their_sources(env_id):
    env, task = make(env_id), TASKS[env_id]
    kinds = [kind for kind in ("hazards", "buttons", "gremlins") if getattr(task, kind)]
    total = 0.0
    for seed in (2, 5, 6):
        obs, _ = env.reset(seed=seed)
        for _ in range(300):
            obs, _, _, _, info = env.step(seek_goal(obs, task, np))
            assert env.observation_space.contains(obs)
            assert list(info) == ["cost", *(f"cost_{kind}" for kind in kinds), "cost_energy"]
            assert info["cost"] == max(info[f"cost_{kind}"] for kind in kinds)
            total += info["cost"]
    assert obs.dtype == np.float32
    assert total > 0


def test_seeds_reproduce_and_differ():
    env = make("GremlinEnv-v0")
    first, second, other = (env.reset(seed=seed)[0] for seed in (7, 7, 8))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)
    assert not np.array_equal(other, env.reset()[0])


@pytest.mark.parametrize("engine", ["mujoco", "jax"])
def test_actions_out_of_range_are_clipped(engine):
    env = make(engine=engine)
    results = []
    for action in ([7.0, -3.0], [1.0, -1.0]):
        env.reset(seed=3)
        results.append(env.step(np.array(action))[0])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([0.1, 0.2, 0.3], r"shape \(3,\); give one of shape \(2,\)"),
        (0.5, r"shape \(\)"),
        ([np.nan, 0.0], "not finite"),
        ([0.0, np.inf], "not finite"),
        ("left", "not an array of numbers"),
        (None, "shape"),
    ],
)
def test_bad_actions_are_explained(action, message):
    env = make().unwrapped
    env.reset(seed=0)
    with pytest.raises(UserError, match=message):
        env.step(action)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "bullet"}, "choose 'mujoco' or 'jax'"),
        ({"env_id": "TwoPathEnv-v0", "engine": "mujoco"}, "engine='jax' only"),
        ({"renderer": "povray"}, "choose 'top_down' or 'mujoco'"),
        ({"engine": "jax", "renderer": "mujoco"}, "needs engine='mujoco'"),
    ],
)
def test_bad_options_are_explained(options, message):
    with pytest.raises(UserError, match=message):
        make(**options)
    with pytest.raises(UserError, match="known ones are SimpleButtonEnv-v0, DynamicEnv-v0"):
        gym.GymEnv("NoEnv-v0", "jax")


@pytest.mark.parametrize(("env_id", "engine"), [("DynamicEnv-v0", "mujoco"), ("TwoPathEnv-v0", "jax")])
def test_a_vector_environment_runs_each_episode_as_a_single_one_would(env_id, engine, monkeypatch):
    """Episodes of four steps, the next one started on the fifth, whose reward is 0 and which has no cost."""
    monkeypatch.setitem(TASKS, "DynamicEnv-v0", dataclasses.replace(TASKS["DynamicEnv-v0"], horizon=4))
    vector = gymnasium.make_vec(f"qcrl/{env_id}", num_envs=3, engine=engine)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    singles = [make(env_id, engine=engine) for _ in range(3)]
    batch, _ = vector.reset(seed=40)
    np.testing.assert_array_equal(batch, [env.reset(seed=40 + i)[0] for i, env in enumerate(singles)])
    for time in range(10):
        action = vector.action_space.sample()
        batch, reward, terminated, truncated, info = vector.step(action)
        if time % 5 == 4:
            expected = [(env.reset()[0], 0.0, False, False) for env in singles]
            assert not info.get("_cost", np.zeros(3)).any()
        else:
            expected = [env.step(one) for env, one in zip(singles, action)]
            assert info["_cost"].all()
            np.testing.assert_allclose(info["cost"], [step[4]["cost"] for step in expected], rtol=1e-6)
        assert (terminated | truncated).tolist() == [time % 5 == 3] * 3
        for got, column in zip((batch, reward, terminated, truncated), zip(*expected)):
            np.testing.assert_allclose(got, column, rtol=1e-6)


def test_a_compiled_batch_steps_each_environment_as_it_would_step_alone():
    vector = gymnasium.make_vec("qcrl/DynamicEnv-v0", num_envs=3, engine="jax")
    single = make(engine="jax")
    vector.reset(seed=40)
    single.reset(seed=42)
    for action in np.random.default_rng(0).uniform(-1, 1, (5, 3, 2)):
        batch, reward, *_, info = vector.step(action)
        obs, alone, *_, one = single.step(action[2])
        # Accelerations come first; the hinge servo amplifies rounding, and there most of all.
        np.testing.assert_allclose(batch[2, 3:], obs[3:], atol=1e-3)
        np.testing.assert_allclose(reward[2], alone, atol=1e-5)
        assert {name: info[name][2] for name in one} == one
    assert info["cost_hazards"].shape == (3,)


def test_a_batch_with_episodes_out_of_step_restarts_only_those_that_ended():
    vector = gymnasium.make_vec("qcrl/TwoPathEnv-v0", num_envs=3, render_mode="rgb_array")
    vector.reset(seed=0)
    forward = np.ones((3, 1))
    vector.step(forward)
    obs, _ = vector.reset(options={"reset_mask": np.array([False, True, False])})
    assert obs[:, 3].tolist() == [0.25, 0.0, 0.25]
    for _ in range(3):
        obs, reward, terminated, _, info = vector.step(forward)
    assert terminated.tolist() == [True, False, True]
    np.testing.assert_allclose(reward, [0.8, 0.0, 0.8], atol=1e-6)
    obs, reward, terminated, _, info = vector.step(forward)
    assert obs[:, 3].tolist() == [0.0, 1.0, 0.0]
    assert info["_cost"].tolist() == [False, True, False]
    assert info["cost"][1] > 0
    assert terminated.tolist() == [False, True, False]
    assert [frame.shape for frame in vector.render()] == [(400, 400, 3)] * 3


def test_a_vector_environment_explains_bad_input():
    vector = gymnasium.make_vec("qcrl/TwoPathEnv-v0", num_envs=3)
    with pytest.raises(gymnasium.error.ResetNeeded):
        vector.step(np.zeros((3, 1)))
    with pytest.raises(UserError, match="there are 3 environments"):
        vector.reset(seed=[1, 2])
    vector.reset(seed=[1, 2, 3])
    with pytest.raises(UserError, match=r"shape \(2, 1\); give one of shape \(3, 1\)"):
        vector.step(np.zeros((2, 1)))
    with pytest.raises(UserError, match="num_envs is 0"):
        gymnasium.make_vec("qcrl/TwoPathEnv-v0", num_envs=0)


@pytest.mark.parametrize("engine", ["mujoco", "jax"])
def test_pictures_show_the_robot_where_it_is_on_both_engines(engine):
    env = make(engine=engine, render_mode="rgb_array", size=200)
    env.reset(seed=0)
    still = env.render()
    assert still.shape == (200, 200, 3)
    np.testing.assert_array_equal(still, env.render())
    for _ in range(20):
        env.step([1.0, 0.0])
    assert np.any(env.render() != still)
    assert make(engine=engine).unwrapped.render() is None
