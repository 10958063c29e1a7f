"""Exact distributions against closed forms, each other, and a million simulated episodes."""

import math

import numpy as np
import pytest
from scipy.special import comb
from scipy.stats import binom

from qcrl import UserError
from qcrl.theory import CMDP, bracket, density, moments, random_cmdp, random_policy, simulate
from qcrl.theory.examples import coin, machine

pytestmark = pytest.mark.filterwarnings("error")
EVEN = np.array([[0.5, 0.5]])


def test_even_coin_at_discount_one_half_is_uniform():
    enclosed = bracket(coin(0.5), EVEN, points=4096)
    for level in (0.1, 0.5, 0.9, 0.99):
        low, high = enclosed.quantile(level)[0]
        assert low <= 2 * level <= high
        assert high - low <= enclosed.error_bound < 0.005
        low, high = enclosed.outage(2 * level)[0]
        assert low <= 1 - level <= high
        low, high = enclosed.cvar(level)[0]
        assert low <= 1 + level <= high


def test_undiscounted_coin_is_binomial():
    exact = bracket(coin(1.0), np.array([[0.7, 0.3]]), horizon=30, spacing=1.0)
    assert exact.error_bound == 0
    np.testing.assert_array_equal(exact.low, exact.high)
    np.testing.assert_allclose(exact.low[0, :31], binom.pmf(np.arange(31), 30, 0.3), rtol=1e-11)
    np.testing.assert_allclose(exact.outage(15)[0], binom.sf(15, 30, 0.3), rtol=1e-11)
    assert exact.quantile(0.9)[0, 0] == binom.ppf(0.9, 30, 0.3)


def irwin_hall(x: np.ndarray, terms: int) -> np.ndarray:
    """Density of the sum of uniform variables on [0, 1]."""
    parts = [(-1) ** k * comb(terms, k) * np.maximum(x - k, 0) ** (terms - 1) for k in range(terms + 1)]
    return sum(parts) / math.factorial(terms - 1)


def test_noise_alone_is_irwin_hall():
    still = CMDP(np.ones((1, 1, 1)), np.zeros((1, 1)), np.zeros((1, 1)), np.ones((1, 1)), discount=1.0)
    exact = density(still, np.ones((1, 1)), horizon=3)[0]
    shown = np.linspace(0.05, 2.95, 30)
    np.testing.assert_allclose(exact.pdf(shown), 2 * irwin_hall(2 * shown, 6), atol=1e-8)
    enclosed = bracket(still, np.ones((1, 1)), horizon=3)
    assert enclosed.cdf(1.7)[0, 0] <= exact.cdf(1.7) <= enclosed.cdf(1.7)[0, 1]


@pytest.mark.parametrize("seed", range(4))
def test_density_lies_in_the_bracket_and_has_the_moments_of_the_linear_solves(seed):
    rng = np.random.default_rng(seed)
    cmdp = random_cmdp(rng, discount=rng.uniform(0.5, 0.9), deterministic=bool(seed % 2))
    policy = random_policy(cmdp, rng)
    enclosed, exact = bracket(cmdp, policy), density(cmdp, policy)
    mean, variance = moments(cmdp, policy)
    for s, each in enumerate(exact):
        step = each.points[1] - each.points[0]
        assert each.mean() == pytest.approx(mean[s], rel=1e-10)
        assert (each.pdf_values * (each.points - mean[s]) ** 2).sum() * step == pytest.approx(variance[s], rel=1e-9)
        assert each.truncation < 1e-11
        for level in (0.1, 0.5, 0.9, 0.99):
            quantile = each.quantile(level)
            low, high = enclosed.quantile(level)[s]
            assert low <= quantile <= high <= low + enclosed.error_bound
            assert each.cdf(quantile) == pytest.approx(level, abs=1e-12)
            assert enclosed.cvar(level)[s, 0] <= each.cvar(level) <= enclosed.cvar(level)[s, 1]
            assert (
                enclosed.outage(quantile + 0.1)[s, 0]
                <= each.outage(quantile + 0.1)
                <= enclosed.outage(quantile + 0.1)[s, 1]
            )


def test_density_agrees_with_a_million_samples():
    rng = np.random.default_rng(7)
    cmdp = random_cmdp(rng, discount=0.75, deterministic=False)
    policy = random_policy(cmdp, rng)
    samples = 1_000_000
    sampled = np.sort(simulate(cmdp, policy, samples, rng, tolerance=1e-5))
    exact = density(cmdp, policy)[cmdp.start]
    # Kolmogorov: sqrt(n) times the largest difference exceeds 1.95 once in a thousand.
    assert np.abs(exact.cdf(sampled) - np.arange(1, samples + 1) / samples).max() < 1.95 / math.sqrt(samples)
    tail = sampled[sampled >= exact.quantile(0.9)]
    assert tail.mean() == pytest.approx(exact.cvar(0.9), abs=4 * tail.std() / math.sqrt(len(tail)))


def test_episode_costs_agree_with_a_million_samples():
    cmdp, policy = machine(), np.array([[0.2, 0.8], [0.6, 0.4], [1.0, 0.0]])
    samples = 1_000_000
    sampled = simulate(cmdp, policy, samples, np.random.default_rng(3), horizon=20)
    exact = bracket(cmdp, policy, horizon=20, spacing=1.0).low[cmdp.start]
    counted = np.bincount(sampled.astype(int), minlength=len(exact)) / samples
    assert (np.abs(counted - exact) <= 4.5 * np.sqrt(exact * (1 - exact) / samples) + 3 / samples).all()


def test_simulation_and_density_would_notice_a_wrong_policy():
    rng = np.random.default_rng(7)
    cmdp = random_cmdp(rng, discount=0.75)
    policy = random_policy(cmdp, rng)
    sampled = np.sort(simulate(cmdp, np.roll(policy, 1, axis=1), 20_000, rng))
    difference = density(cmdp, policy)[0].cdf(sampled) - np.arange(1, 20_001) / 20_000
    assert np.abs(difference).max() > 5 / math.sqrt(20_000)


def test_mistakes_are_explained():
    with pytest.raises(UserError, match="sum to 1"):
        bracket(coin(), np.array([[0.5, 0.6]]))
    with pytest.raises(UserError, match="give a horizon"):
        bracket(coin(1.0), EVEN)
    with pytest.raises(UserError, match="atoms"):
        density(coin(0.6), EVEN)
    with pytest.raises(UserError, match="shape"):
        coin().replace(reward=np.zeros((2, 2)))
    with pytest.raises(UserError, match="negative"):
        coin().replace(cost=np.array([[-1.0, 1.0]]))
