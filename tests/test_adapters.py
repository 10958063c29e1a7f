"""Other people's JAX environments on the device, and Safety-Gymnasium's convention in both directions."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

import qcrl
from host_envs import Ragged, SixValues
from qcrl.algos.algorithm import Algorithm
from qcrl.envs.adapters.brax import BraxEnv
from qcrl.envs.adapters.gymnax import GymnaxEnv
from qcrl.envs.adapters.safety_gymnasium import FiveTuple, SixTuple
from qcrl.envs.find import find
from qcrl.envs.host.environment import open_host
from qcrl.errors import UserError
from qcrl.sampling.record import read_trajectory


class BraxState(NamedTuple):
    pipeline_state: Any
    obs: Any
    reward: Any
    done: Any
    info: Any


class FakeBrax:
    """A point on a line that an action moves; done beyond 1, and it costs its distance from 0."""

    observation_size, action_size = 1, 1

    def reset(self, rng):
        zero = jnp.zeros(())
        return BraxState(zero, zero[None], zero, zero, {"cost": zero})

    def step(self, state, action):
        x = state.pipeline_state + 0.3 * action[0]
        return BraxState(x, x[None], x, (x > 1).astype(jnp.float32), {"cost": jnp.abs(x)})


class Params(NamedTuple):
    max_steps_in_episode: int = 6


class Choices(NamedTuple):
    n: int


class FakeGymnax:
    """Counts how often choice 1 was taken, and ends after three; `step` resets by itself, `step_env` does not."""

    name = "Counter"
    default_params = Params()

    def action_space(self, params):
        return Choices(2)

    def reset(self, key, params):
        return jnp.zeros(2), {"count": 0, "time": 0}

    def step_env(self, key, state, action, params):
        count, time = state["count"] + (action == 1), state["time"] + 1
        done = (count >= 3) | (time >= params.max_steps_in_episode)
        return jnp.array([count, time]), {"count": count, "time": time}, action, done, {"cost": 2.0 * action}

    def step(self, key, state, action, params):
        raise AssertionError("this would reset by itself")


@dataclass(frozen=True)
class Same(Algorithm):
    """Does the same all the time, learns nothing, and keeps what it was given to learn from."""

    action: tuple[float, ...] = ()

    def init(self, env, key, constraints):
        return self.start(env, jnp.zeros(()), jax.random.key_data(key), key, constraints)

    def actor(self, env, state):
        return jnp.array(self.action)

    def sample(self, env, actor, inputs, memory, noise):
        return jnp.broadcast_to(actor, noise.shape), memory

    def learn(self, env, state, experience):
        return state._replace(store=read_trajectory(env, experience)), {}


def roll(env, action, steps, key=0):
    """All environments do the same all the time."""
    algorithm = Same(num_envs=2, steps_per_env=steps, action=tuple(action))
    state = algorithm.init(env, jax.random.key(key), [qcrl.Mean(1.0)])
    state, metrics = jax.jit(lambda state: algorithm.iterate(env, state))(state)
    return state.store, metrics.episodes


def test_a_brax_environment_ends_and_is_cut_off_where_it_should():
    env = BraxEnv(FakeBrax(), horizon=5)
    trajectory, episodes = roll(env, [1.0], 8)
    # 0.3, 0.6, 0.9, 1.2: over after four steps, of which the costs are the positions.
    assert trajectory.terminated[:, 0].tolist() == [False, False, False, True] * 2
    assert not trajectory.truncated.any()
    assert episodes.cost[episodes.finished, 0].tolist() == pytest.approx([3.0] * 4)
    assert trajectory.next_obs[3, 0, 0] == pytest.approx(1.2)
    trajectory, _ = roll(env, [-9.0], 10)  # clipped to -1
    assert trajectory.truncated[:, 0].tolist() == [False, False, False, False, True] * 2
    assert trajectory.next_obs[4, 0, 0] == pytest.approx(-1.5)


def test_braxs_own_time_limit_is_a_truncation():
    class Limited(FakeBrax):
        def reset(self, rng):
            state = super().reset(rng)
            return state._replace(info={**state.info, "truncation": jnp.zeros(()), "steps": jnp.zeros(())})

        def step(self, state, action):
            after, steps = super().step(state, action), state.info["steps"] + 1
            cut = (steps >= 3).astype(jnp.float32)
            return after._replace(
                done=jnp.maximum(after.done, cut), info={**after.info, "truncation": cut, "steps": steps}
            )

    trajectory, _ = roll(BraxEnv(Limited()), [0.0], 6)
    assert trajectory.truncated[:, 0].tolist() == [False, False, True] * 2
    assert not trajectory.terminated.any()


def test_a_gymnax_environment_takes_choices_and_does_not_reset_by_itself():
    env = GymnaxEnv(FakeGymnax())
    assert (env.horizon, env.action_size, env.observation_size, env.discrete) == (6, 2, 2, True)
    trajectory, episodes = roll(env, [0.0, 1.0], 6)
    assert trajectory.terminated[:, 0].tolist() == [False, False, True] * 2
    assert trajectory.next_obs[2, 0].tolist() == [3.0, 3.0]
    assert episodes.cost[episodes.finished, 0].tolist() == [6.0] * 4
    trajectory, _ = roll(env, [1.0, 0.0], 6)
    assert trajectory.truncated[:, 0].tolist() == [False] * 5 + [True]


def test_functions_give_costs_and_a_negative_one_is_no_number():
    env = find(FakeBrax(), lambda obs, action, next_obs, info: next_obs[0] - obs[0])
    _, step = env.step(env.reset(jax.random.key(0))[0], jnp.array([0.5]))
    assert step.cost == pytest.approx(0.15)
    _, step = env.step(env.reset(jax.random.key(0))[0], jnp.array([-0.5]))
    assert np.isnan(step.cost)


def test_an_environment_without_cost_or_that_resets_itself_is_refused():
    with pytest.raises(UserError, match=r"reports no cost.*it has: cost"):
        BraxEnv(FakeBrax(), cost="penalty")
    with pytest.raises(UserError, match="reports no cost"):
        GymnaxEnv(FakeGymnax(), cost="penalty")

    class Resetting(FakeBrax):
        def reset(self, rng):
            state = super().reset(rng)
            return state._replace(info={**state.info, "first_obs": state.obs})

        step = lambda self, state, action: state

    with pytest.raises(UserError, match="auto_reset=False"):
        BraxEnv(Resetting())


def test_a_discrete_jax_environment_is_trained_on_the_device(tmp_path):
    small = {
        "num_envs": 8,
        "steps_per_env": 60,
        "chunk_length": 60,
        "hidden_sizes": (8,),
        "lstm_size": 0,
        "minibatches": 1,
    }
    # Choice 1 pays 1 and costs 2; at a multiplier of 2 it is not worth it.
    price = {
        "cost_scale": 1.0,
        "initial_multiplier": 2.0,
        "integral_gain": 0.0,
        "learning_rate": 1e-2,
        "target_kl": 0.05,
    }
    env, out = FakeGymnax(), tmp_path / "run"
    run = qcrl.train("ppo_lag", env, qcrl.Mean(1.0), steps=14_400, out=out, progress=False, **small, **price)
    costs = run.metrics["episode_cost"]
    assert costs[0] > 4
    assert costs[-1] < 1
    result = qcrl.evaluate(run, 200, env=FakeGymnax(), progress=False).per_lane[0]
    assert result.mean_cost == pytest.approx(2 * result.mean_return)
    assert int(run.policy()(np.zeros(2), run.policy().initial())[0]) in (0, 1)


def test_our_environments_speak_safety_gymnasiums_way():
    env = SixTuple(gymnasium.make("qcrl/TwoPathEnv-v0"))
    env.reset(seed=1)
    values = [env.step(np.array([-1.0])) for _ in range(4)]
    assert all(len(value) == 6 for value in values)
    _, reward, cost, terminated, truncated, info = values[-1]
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert cost == info["cost"] > 0
    assert open_host(lambda: SixTuple(gymnasium.make("qcrl/TwoPathEnv-v0").unwrapped)).cost_source == "6-tuple"


def test_their_environments_can_be_vectorised():
    vector = SyncVectorEnv([lambda: FiveTuple(SixValues())] * 2)
    assert open_host(vector).cost_source == 'info["cost"]'
    wrapped = FiveTuple(Ragged())
    wrapped.reset()
    with pytest.raises(UserError, match="5 values, not 6"):
        wrapped.step(np.array([0.0, 1.0], np.float32))
