"""Quantile grid, interpolation, and the losses that estimate quantiles, against closed forms."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

from qcrl.algos.advantages import Links
from qcrl.algos.batch import Sampled
from qcrl.algos.qcpo import QCPO
from qcrl.algos.quantile_advantage import CostDistribution
from qcrl.constraints import Outage
from qcrl.quantiles import ascending, at_level, empirical_quantile, grid, quantile_huber_loss
from qcrl.tails import Weibull


def test_grid_is_the_papers():
    np.testing.assert_allclose(grid(25), [(2 * i - 1) / 50 for i in range(1, 26)], rtol=1e-6)


def test_ascending_sorts():
    for count in (2, 7, 25):
        rows = jax.random.normal(jax.random.key(count), (4, 50, count))
        np.testing.assert_array_equal(jax.jit(ascending)(rows), np.sort(rows, axis=-1))


def pinball(quantiles, targets, kappa):
    """The definition in the paper's appendix, pair by pair."""
    total = 0.0
    for level, quantile in zip(grid(len(quantiles)), quantiles):
        for target in targets:
            error = target - quantile
            size = abs(error)
            huber = 0.5 * size**2 / kappa if size <= kappa else size - kappa / 2
            total += abs(level - (error < 0)) * huber
    return total / (len(quantiles) * len(targets))


def test_quantile_huber_loss_follows_its_definition():
    rng = np.random.default_rng(0)
    quantiles, targets = rng.normal(size=5), rng.normal(size=7)
    for kappa in (0.1, 1.0, 1e-6):
        got = quantile_huber_loss(jnp.asarray(quantiles), jnp.asarray(targets), kappa)
        np.testing.assert_allclose(got, pinball(quantiles, targets, kappa), rtol=1e-4)
    exact = quantile_huber_loss(jnp.asarray(quantiles), jnp.asarray(targets), 0.0)
    np.testing.assert_allclose(exact, pinball(quantiles, targets, 1e-9), rtol=1e-5)


@pytest.mark.parametrize("kappa", [0.0, 0.3])
def test_gradient_of_the_huber_loss_is_its_slope(kappa):
    quantiles = jnp.array([0.1, 0.8, 1.4])
    targets = jnp.array([0.0, 0.55, 1.0, 2.0])
    gradient = jax.grad(lambda q: quantile_huber_loss(q, targets, kappa))(quantiles)
    for i in range(3):
        step = jnp.zeros(3).at[i].set(1e-3)
        ahead, behind = (quantile_huber_loss(quantiles + s, targets, kappa) for s in (step, -step))
        assert gradient[i] == pytest.approx(float(ahead - behind) / 2e-3, rel=1e-2)


def test_quantile_regression_recovers_a_known_distribution():
    """Gradient descent on the loss, with a fine and exact set of samples, ends at the quantiles of a gamma law."""
    law = scipy.stats.gamma(2.0)
    samples = jnp.asarray(law.ppf((np.arange(5000) + 0.5) / 5000).reshape(25, 200).T, jnp.float32)

    def loss(quantiles):
        return quantile_huber_loss(jnp.broadcast_to(quantiles, samples.shape), samples, 0.0).mean()

    def descend(step, quantiles):
        return quantiles - 50.0 / (1 + step / 100) * jax.grad(loss)(quantiles)

    quantiles = jax.jit(lambda: jax.lax.fori_loop(0, 2000, descend, jnp.ones(25)))()
    np.testing.assert_allclose(quantiles, law.ppf(grid(25)), rtol=0.01)


def test_every_level_can_be_read():
    tail = scipy.stats.weibull_min(1.5, scale=2.0)
    quantiles = jnp.asarray(tail.ppf(grid(25)), jnp.float32)
    shape = jnp.asarray(1.5)
    for level in grid(25):
        assert at_level(quantiles, level, shape) == pytest.approx(tail.ppf(level), rel=1e-4)
    # Outage probability 0.5 and 0.2, between grid levels, where the released code reads a neighbour or a wrong column.
    assert at_level(quantiles, 1 - 0.5, shape) == pytest.approx(tail.ppf(0.5), rel=1e-4)
    below, above = tail.ppf(0.78), tail.ppf(0.82)
    assert at_level(quantiles, 1 - 0.2, shape) == pytest.approx((below + above) / 2, rel=1e-4)
    # Beyond the grid: the tail takes over, and meets the last quantile.
    for probability in (0.02, 0.01, 0.005, 0.001):
        assert at_level(quantiles, 1 - probability, shape) == pytest.approx(tail.ppf(1 - probability), rel=1e-3)
    assert at_level(3 * quantiles, 1 - 0.005, shape) == pytest.approx(3 * tail.ppf(0.995), rel=1e-3)
    assert at_level(quantiles, 0.001, shape) == quantiles[0]


def test_levels_can_be_vectorised():
    quantiles = jnp.arange(25.0)
    levels = jnp.array([0.5, 0.9, 0.98])
    np.testing.assert_allclose(
        jax.vmap(lambda u: at_level(quantiles, u, jnp.ones(())))(levels), [12, 22, 24], rtol=1e-5
    )


def test_empirical_quantile_of_a_window():
    costs = jnp.asarray(np.random.default_rng(0).permutation(100), jnp.float32)
    everything = jnp.ones(100, bool)
    for probability, element in [(0.1, 90), (0.2, 80), (0.5, 50), (0.05, 95), (0.02, 98), (0.3, 70), (0.7, 30)]:
        assert empirical_quantile(costs, everything, 1 - jnp.float32(probability)) == element
    half = jnp.arange(100) < 50
    assert empirical_quantile(costs, half, jnp.float32(0.9)) == np.sort(costs[:50])[45]
    assert np.isnan(empirical_quantile(costs, jnp.zeros(100, bool), jnp.float32(0.9)))


def train_on_a_chain(algorithm, steps=1500, batch=200):
    """QCPO's critic as a table on s0 -> s1 -> s2 -> end, with an exponential cost of mean 8 due at the end."""
    table = CostDistribution(jnp.ones((3, algorithm.quantiles)), Weibull(jnp.ones(3), jnp.ones(3)))
    links = Links(*(jnp.tile(jnp.array(x)[:, None], batch) for x in ([False, False, True], [True, True, False])))
    repeat = lambda table: jax.tree.map(lambda x: jnp.repeat(x[:, None], batch, axis=1), table)
    env = SimpleNamespace(costs=("cost",))
    state = SimpleNamespace(probability=jnp.float32(0.1), constraints=[Outage(15, 0.1)], learner=None)
    optimiser = optax.adam(optax.exponential_decay(0.03, steps // 5, 0.3))

    def learn(carry, key):
        table, memory = carry
        strata = (jnp.arange(batch) + jax.random.uniform(key, (batch,))) / batch
        cost = jnp.zeros((3, batch)).at[2].set(-8.0 * jnp.log1p(-strata))
        old = repeat(table)
        following = jax.tree.map(lambda x: jnp.roll(x, -1, axis=0), old)
        sampled = Sampled(SimpleNamespace(cost=cost[..., None]), old, following, links)
        targets = algorithm.cost_signal(env, state, sampled).targets
        gradient = jax.grad(lambda table: algorithm.cost_loss(repeat(table), targets)[0])(table)
        update, memory = optimiser.update(gradient, memory)
        return (optax.apply_updates(table, update), memory), None

    keys = jax.random.split(jax.random.key(0), steps)
    (table, _), _ = jax.jit(lambda: jax.lax.scan(learn, (table, optimiser.init(table)), keys))()
    return algorithm.cost_scale * table.quantiles


def test_critic_learns_the_exact_quantiles_of_a_chain():
    """Each state's discounted cost to go is exponential too. The mean's loss is off: a grid's mean is not the mean."""
    algorithm = QCPO(cost_scale=10.0, kappa=5e-4, cost_mean_loss_weight=0.0)
    quantiles = train_on_a_chain(algorithm)
    checked = grid(25) >= 0.1
    for state in range(3):
        exact = algorithm.discount ** (2 - state) * scipy.stats.expon(scale=8.0).ppf(grid(25))
        np.testing.assert_allclose(quantiles[state][checked], exact[checked], rtol=0.02)
