"""What the algorithms are for: on two routes whose costs are known in closed form, each takes the one it should."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from qcrl.algos.advantages import Links
from qcrl.algos.find import build
from qcrl.algos.quantile_advantage import CostDistribution, quantile_advantage
from qcrl.constraints import Outage
from qcrl.envs.two_path import TwoPathEnv
from qcrl.nets.network import Inputs
from qcrl.quantiles import grid
from qcrl.tails import Weibull

ENV, LIMIT, PROBABILITY = TwoPathEnv(), 15.0, 0.1


def share_of_route_1(name):
    """Train with the fast preset, and ask the policy which way it would go."""
    algorithm = replace(build(name, "fast"), steps_per_env=200)

    def train(key):
        constraint = algorithm.trains_under.from_outage(Outage(LIMIT, PROBABILITY))
        state = algorithm.init(ENV, key, [constraint])
        state, metrics = jax.lax.scan(lambda state, _: algorithm.iterate(ENV, state), state, length=120)
        inputs = Inputs.first(jnp.tile(ENV.reset(key)[1], (4000, 1)), ENV.action_size, len(ENV.costs))
        action, _ = algorithm.act(
            ENV, algorithm.policy_state(ENV, state), inputs, algorithm.initial_memory(ENV), key, deterministic=False
        )
        return jnp.mean(action < 0), metrics.scalars

    return jax.jit(train)(jax.random.PRNGKey(0))


def outage(share):
    first, second = (route.outage(LIMIT) for route in ENV.routes)
    return share * first + (1 - share) * second


def test_ppo_lag_takes_the_route_with_the_heavy_tail():
    share, metrics = share_of_route_1("ppo_lag")
    assert share > 0.95
    # Mean cost 12 keeps the mean limit; the outage is the closed form's 0.2865.
    assert outage(share) == pytest.approx(0.2865, abs=0.015)
    assert metrics["outage"][-40:].mean() == pytest.approx(0.2865, abs=0.03)
    assert metrics["episode_cost"][-40:].mean() == pytest.approx(ENV.routes[0].mean(), rel=0.1)


def test_qcpo_takes_the_route_that_keeps_the_outage():
    share, metrics = share_of_route_1("qcpo")
    assert share < 0.1
    assert outage(share) < PROBABILITY
    assert metrics["outage"][-40:].mean() == pytest.approx(0.08, abs=0.025)
    assert metrics["cost_quantile"][-40:].mean() == pytest.approx(ENV.routes[1].quantile(0.9), rel=0.05)


def test_quantile_advantage_by_hand():
    """Two steps: an ordinary one, weighted by the density ratio, and the last of an episode, with weight 1."""
    discount, level = 0.9, 0.9
    laws = [scipy.stats.weibull_min(1.2, scale=2.0), scipy.stats.weibull_min(1.5, scale=1.6)]
    tails = Weibull(jnp.array([[1.2], [1.5]]), jnp.array([[2.0], [1.6]]))
    quantiles = jnp.asarray(np.stack([law.ppf(grid(25)) for law in laws])[:, None], jnp.float32)
    now = CostDistribution(quantiles[..., ::-1], tails)
    after = jax.tree.map(lambda x: jnp.roll(x, -1, axis=0), now)
    cost = jnp.array([[0.3], [1.0]])
    links = Links(jnp.array([[False], [True]]), jnp.array([[True], [False]]))
    got, weight = quantile_advantage(cost, now, after, links, jnp.float32(level), discount, 0.0, "clip", 0.5)
    q = [law.ppf(level) for law in laws]
    ratio = laws[1].pdf((q[0] - 0.3) / discount) / (discount * laws[0].pdf(q[0]))
    expected_weight = 1 + np.clip(np.log(ratio), -0.5, 0.5)
    np.testing.assert_allclose(weight[:, 0], [expected_weight, 1.0], rtol=1e-3)
    expected = [expected_weight * (0.3 + discount * q[1] - q[0]), 1.0 - q[1]]
    assert got[:, 0] == pytest.approx(expected, rel=1e-3)
