"""Risk-constrained policy gradient: its advantage by hand, and the two routes whose CVaR is known in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qcrl import UserError
from qcrl.algos.cvar_pg import CVaRPG
from qcrl.constraints import CVaR
from qcrl.envs import make
from qcrl.envs.two_path import TwoPathEnv
from qcrl.nets.network import Inputs, Memory
from qcrl.sampling.record import Trajectory
from qcrl.tails import Weibull

ENV, LEVEL = TwoPathEnv(), 0.1
LIMITS = 15.0, 18.0, 45.0


def cvar(route):
    return float(Weibull(jnp.float32(route.shape), jnp.float32(route.scale)).cvar(LEVEL))


@pytest.fixture(scope="module")
def trained():
    """Share of route 1 and metrics, for each limit."""
    algorithm = CVaRPG(num_envs=32, steps_per_env=16)

    def train(key, limit):
        state = algorithm.init(ENV, key, [CVaR(limit, LEVEL)])
        state, metrics = jax.lax.scan(lambda state, _: algorithm.iterate(ENV, state), state, length=300)
        inputs = Inputs.first(jnp.tile(ENV.reset(key)[1], (4000, 1)), ENV.action_size, len(ENV.costs))
        action, _ = algorithm.act(
            ENV, algorithm.policy_state(ENV, state), inputs, algorithm.initial_memory(ENV), key, deterministic=False
        )
        return jnp.mean(action < 0), metrics.scalars

    return jax.jit(jax.vmap(train))(jax.random.split(jax.random.PRNGKey(0), 3), jnp.array(LIMITS))


def test_it_takes_the_best_route_whose_cvar_is_allowed(trained):
    share, metrics = trained
    heavy, light = map(cvar, ENV.routes)
    assert light < LIMITS[1] < heavy < LIMITS[2]
    assert share[1] < 0.05
    assert share[2] > 0.95
    np.testing.assert_allclose(metrics["cvar"][1:, -100:].mean(axis=1), [light, heavy], rtol=0.05)
    assert metrics["multiplier"][1:, -100:].mean() < 0.05


def test_nu_is_the_quantile(trained):
    _, metrics = trained
    exact = [ENV.routes[1].quantile(1 - LEVEL), ENV.routes[0].quantile(1 - LEVEL)]
    np.testing.assert_allclose(metrics["nu"][1:, -100:].mean(axis=1), exact, rtol=0.03)


def test_no_route_keeps_the_cvar_under_15_and_the_lesser_evil_is_taken(trained):
    share, metrics = trained
    assert min(map(cvar, ENV.routes)) > LIMITS[0]
    assert share[0] < 0.02
    multiplier = metrics["multiplier"][0]
    assert multiplier[-1] - multiplier[-101] == pytest.approx(100 * 0.01 * (cvar(ENV.routes[1]) - 15), rel=0.2)


def test_advantage_by_hand():
    """Environment 0 ends an episode that began earlier and starts one that goes on; 1 and 2 have whole episodes."""
    first = jnp.array([[0, 1, 1], [1, 0, 0], [0, 0, 1]], bool)
    ended = jnp.array([[1, 0, 0], [0, 0, 1], [0, 1, 1]], bool)
    reward = jnp.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    cost = jnp.array([[1.0, 1, 1], [2, 3, 4], [5, 6, 7]])[..., None]
    # What each episode has cost before the step; that of environment 0 began with a cost of 100, and does not count.
    spent = jnp.array([[100.0, 0, 0], [0, 1, 1], [2, 4, 0]])[..., None]
    none = jnp.zeros((3, 3, 1))
    trajectory = Trajectory(
        Inputs(none, none, reward, cost, spent, reward),
        first,
        none,
        reward,
        cost,
        ended,
        jnp.zeros((3, 3), bool),
        none,
        spent + cost,
        Memory((), ()),
    )
    algorithm = CVaRPG(discount=0.5, num_envs=3, steps_per_env=4)
    state = algorithm.init(ENV, jax.random.key(0), [CVaR(4.0, 0.5)])
    learner = state.learner._replace(multiplier=jnp.float32(2.0))
    advantage, whole = algorithm.advantage(learner, state.probability, trajectory, 0)
    assert whole.tolist() == [[False, True, True], [False, True, True], [False, True, True]]
    # X is 10 in environment 1; 5, 5 and 7 in environment 2; nu is 4. The rewards to go are less by 2 (X - 4) / 0.5.
    gain = np.array([[2 + 2.5 + 2 - 24, 3 + 3 - 4], [5 + 4 - 24, 6 - 4], [8 - 24, 9 - 12]])
    np.testing.assert_allclose(advantage[:, 1:], gain - gain[:, ::-1], rtol=1e-6)


def test_whole_episodes_are_asked_for():
    with pytest.raises(UserError, match="multiple of the 1000 steps of an episode of DynamicEnv-v0"):
        CVaRPG(steps_per_env=500).check(make("DynamicEnv-v0"))
    with pytest.raises(UserError, match="num_envs is 1"):
        CVaRPG(num_envs=1)


def test_an_iteration_without_a_finished_episode_only_feeds_the_statistics():
    algorithm = CVaRPG(num_envs=2, steps_per_env=ENV.horizon - 1, hidden_sizes=(2,))
    before = algorithm.init(ENV, jax.random.key(0), [CVaR(4.0, 0.5)])
    states, reported = [before], []
    for _ in range(2):
        state, metrics = jax.jit(lambda state: algorithm.iterate(ENV, state))(states[-1])
        states.append(state)
        reported.append(metrics)
    assert [state.alive.item() for state in states] == [True] * 3
    assert [metrics.episodes.finished.any().item() for metrics in reported] == [False, True]
    np.testing.assert_array_equal([np.isfinite(metrics.scalars["cvar"]) for metrics in reported], [False, True])
    assert [state.learner.normaliser.samples.item() for state in states] == [0, 6, 12]
    same = lambda one, two: jax.tree.all(
        jax.tree.map(lambda a, b: bool((a == b).all()), *(x.learner._replace(normaliser=()) for x in (one, two)))
    )
    assert same(states[0], states[1])
    assert not same(states[1], states[2])
