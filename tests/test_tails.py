"""Weibull and Gaussian tails, the fit, and the density ratio, against scipy and the paper's theorems."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.integrate import quad
from scipy.optimize import brentq

from qcrl.quantiles import grid
from qcrl.tails import (
    Gaussian,
    Weibull,
    clipped_weight,
    fit_weibull,
    log_density_ratio,
    standardised_weight,
    weibull_loss,
)

LEVELS = grid(25)[-8:]
PAIRS = [(0.7, 2.0), (1.0, 0.8), (2.5, 3.0)]


@pytest.mark.parametrize(("shape", "scale"), PAIRS)
def test_weibull_is_scipys(shape, scale):
    tail, reference = Weibull(jnp.float32(shape), jnp.float32(scale)), scipy.stats.weibull_min(shape, scale=scale)
    x = np.linspace(0.05, 8, 40)
    np.testing.assert_allclose(tail.log_pdf(jnp.asarray(x)), reference.logpdf(x), rtol=1e-4, atol=1e-4)
    assert tail.log_pdf(jnp.float32(-0.1)) == -jnp.inf
    for level in (0.1, 0.5, 0.9, 0.995):
        assert tail.quantile(level) == pytest.approx(reference.ppf(level), rel=1e-4)
    for mass in (0.5, 0.1, 0.02):
        mean_beyond = quad(reference.ppf, 1 - mass, 1)[0] / mass
        assert tail.cvar(mass) == pytest.approx(mean_beyond, rel=1e-3)


def test_gaussian_is_scipys():
    tail, reference = Gaussian(jnp.float32(1.0), jnp.float32(4.0)), scipy.stats.norm(1.0, 2.0)
    assert tail.log_pdf(jnp.float32(2.5)) == pytest.approx(reference.logpdf(2.5), rel=1e-5)
    assert tail.quantile(0.9) == pytest.approx(reference.ppf(0.9), rel=1e-5)
    unit = Gaussian(jnp.float32(0.0), jnp.float32(1.0))
    # WCSAC's factors at 0.2 and 0.1.
    assert unit.cvar(0.2) == pytest.approx(1.400, abs=1e-3)
    assert unit.cvar(0.1) == pytest.approx(1.755, abs=1e-3)


@pytest.mark.parametrize(("shape", "scale"), PAIRS)
def test_weibull_loss_recovers_the_tail_of_exact_quantiles(shape, scale):
    quantiles = jnp.asarray(scipy.stats.weibull_min(shape, scale=scale).ppf(LEVELS), jnp.float32)

    def loss(raw):
        return weibull_loss(Weibull(4 * jax.nn.sigmoid(raw[0]), jnp.exp(raw[1])), quantiles, LEVELS)

    descend = lambda _, raw: raw - 0.5 * jax.grad(loss)(raw)
    raw = jax.jit(lambda: jax.lax.fori_loop(0, 5000, descend, jnp.zeros(2)))()
    assert 4 * jax.nn.sigmoid(raw[0]) == pytest.approx(shape, rel=1e-2)
    assert jnp.exp(raw[1]) == pytest.approx(scale, rel=1e-2)
    fitted = fit_weibull(quantiles, LEVELS)
    assert (fitted.shape, fitted.scale) == (pytest.approx(shape, rel=1e-3), pytest.approx(scale, rel=1e-3))
    assert weibull_loss(fitted, quantiles, LEVELS) == pytest.approx(0, abs=1e-6)


def test_density_ratio_is_that_of_scipys_densities():
    here, after = (1.3, 2.0), (0.9, 1.5)
    quantile, cost, discount = 3.0, 0.5, 0.99
    pdf = lambda tail, x: scipy.stats.weibull_min(tail[0], scale=tail[1]).pdf(x)
    expected = pdf(after, (quantile - cost) / discount) / (discount * pdf(here, quantile))
    tails = [Weibull(jnp.float32(shape), jnp.float32(scale)) for shape, scale in (here, after)]
    got = log_density_ratio(*tails, jnp.float32(quantile), jnp.float32(cost), discount)
    assert jnp.exp(got) == pytest.approx(expected, rel=1e-4)


def test_weights_average_to_one():
    """E[mu] = 1 (Corollary 1): here X(s) is c + gamma X(s') with a random c, so that p_s is the mixture of the p_s'."""
    discount, costs, chances = 0.9, np.array([0.0, 0.4, 1.0]), np.array([0.5, 0.3, 0.2])
    after = scipy.stats.weibull_min(1.4, scale=2.0)
    cdf = lambda x: chances @ after.cdf((x - costs) / discount)
    quantile = brentq(lambda x: cdf(x) - 0.9, 0, 50)
    density = chances @ after.pdf((quantile - costs) / discount) / discount
    next_tail = Weibull(jnp.full(3, 1.4), jnp.full(3, 2.0))

    class Mixture:
        """The tail of s, known exactly."""

        def log_pdf(self, x):
            return jnp.log(density)

    log_ratio = log_density_ratio(Mixture(), next_tail, jnp.full(3, quantile), jnp.asarray(costs), discount)
    assert chances @ np.exp(log_ratio) == pytest.approx(1.0, rel=1e-4)


def test_weights_are_smoothed_as_stated():
    log_ratio = jnp.array([-jnp.inf, -0.3, 0.0, 0.2, 4.0])
    np.testing.assert_allclose(clipped_weight(log_ratio, 0.5), [0.5, 0.7, 1.0, 1.2, 1.5], rtol=1e-6)

    log_ratio, remaining = jnp.array([-jnp.inf, 1.0, 2.0, 30.0]), jnp.array([1e-4, 1.0, 1.0, 1.0])
    counted = np.array([0.0, 1.0, 2.0, 30.0])
    expected = 1 + np.clip((counted - counted.mean()) / (5 * counted.std()), -0.5, 0.5)
    np.testing.assert_allclose(standardised_weight(log_ratio, remaining, 0.5), expected, rtol=1e-4)
