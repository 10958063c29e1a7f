"""TwoPathEnv against its closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import qcrl

LIMIT = 15.0


def play(action: float, episodes: int):
    env = qcrl.make("TwoPathEnv-v0")

    def episode(key):
        state, _ = env.reset(key)

        def advance(state, _):
            state, step = env.step(state, jnp.array([action]))
            return state, step

        return jax.lax.scan(advance, state, None, length=env.horizon)[1]

    return env, jax.device_get(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), episodes)))


@pytest.mark.parametrize(("action", "route"), [(-0.5, 0), (0.5, 1)])
def test_route_costs_match_their_closed_forms(action, route):
    env, steps = play(action, 100_000)
    route = env.routes[route]
    costs = steps.cost.sum(1)
    weibull = scipy.stats.weibull_min(route.shape, scale=route.scale)
    assert route.mean() == pytest.approx(weibull.mean())
    assert route.quantile(0.9) == pytest.approx(weibull.ppf(0.9))
    assert route.outage(LIMIT) == pytest.approx(weibull.sf(LIMIT))
    assert costs.mean() == pytest.approx(route.mean(), abs=4 * weibull.std() / len(costs) ** 0.5)
    assert np.quantile(costs, 0.9) == pytest.approx(route.quantile(0.9), rel=0.02)
    assert (costs > LIMIT).mean() == pytest.approx(route.outage(LIMIT), abs=4 * 0.5 / len(costs) ** 0.5)
    np.testing.assert_allclose(steps.reward.sum(1), route.reward)
    np.testing.assert_array_equal(steps.terminated.sum(1), 1)
    assert steps.terminated[:, -1].all()


def test_the_example_shows_the_point():
    env = qcrl.make("TwoPathEnv-v0")
    risky, steady = env.routes
    assert risky.mean() < steady.mean() < LIMIT, "a mean constraint allows both routes"
    assert risky.reward > steady.reward, "so the return takes route 1"
    assert steady.outage(LIMIT) < 0.1 < risky.outage(LIMIT), "which an outage constraint forbids"
