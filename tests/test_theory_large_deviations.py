"""Rate functions against closed forms and exact tails; tail fits against the learner's."""

import math

import numpy as np
import pytest
from scipy.stats import weibull_min

from qcrl import UserError
from qcrl.tails import fit_weibull
from qcrl.theory import bracket, fit_tails, rate_function, state_action_chain
from qcrl.theory.examples import coin, machine
from qcrl.theory.large_deviations import LEVELS, cumulant

pytestmark = pytest.mark.filterwarnings("error")


def test_independent_coin_tosses_have_the_relative_entropy_as_rate():
    matrix, values = state_action_chain(coin(), np.array([[0.7, 0.3]]))
    for mean in (0.05, 0.3, 0.5, 0.95):
        entropy = mean * math.log(mean / 0.3) + (1 - mean) * math.log((1 - mean) / 0.7)
        assert rate_function(matrix, values, mean) == pytest.approx(entropy, abs=1e-9)
    assert rate_function(matrix, values, 1.2) == math.inf


def test_two_state_chain_has_the_eigenvalue_of_its_quadratic():
    stay, leave, tilt = 0.9, 0.2, 0.7
    matrix, values = np.array([[stay, 1 - stay], [leave, 1 - leave]]), np.array([0.0, 1.0])
    grown = (1 - leave) * math.exp(tilt)
    trace, determinant = stay + grown, (stay * (1 - leave) - (1 - stay) * leave) * math.exp(tilt)
    assert math.exp(cumulant(matrix, values, tilt)) == pytest.approx(
        (trace + math.sqrt(trace**2 - 4 * determinant)) / 2, rel=1e-12
    )
    stationary = (1 - stay) / (1 - stay + leave)
    assert rate_function(matrix, values, stationary) == pytest.approx(0, abs=1e-12)


def test_exact_tails_approach_the_rate():
    cmdp, policy = machine(), np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    matrix, values = state_action_chain(cmdp, policy)
    rate = rate_function(matrix, values, 0.5)
    gaps = []
    for steps in (50, 200, 800):
        tail = bracket(cmdp, policy, horizon=steps, spacing=1.0).outage(steps // 2 - 1)[0, 0]
        gaps.append(-math.log(tail) / steps - rate)
    assert gaps[0] > gaps[1] > gaps[2] > 0
    # The gap closes like log(n) / n.
    assert gaps[2] < 0.01
    assert gaps[1] / gaps[2] == pytest.approx(4, abs=1)


def test_an_exact_weibull_is_recovered():
    quantiles = weibull_min.ppf(LEVELS, 1.7, scale=3.0)
    fitted = fit_tails(quantiles, mean=2.0, deviation=1.0)
    assert (fitted.shape, fitted.scale) == (pytest.approx(1.7, rel=1e-12), pytest.approx(3.0, rel=1e-12))
    np.testing.assert_allclose(fitted.weibull(np.array([0.1, 1e-6])), weibull_min.isf([0.1, 1e-6], 1.7, scale=3.0))
    assert fitted.gaussian(0.5) == pytest.approx(2.0)
    assert fitted.gaussian_outage(3.0) == pytest.approx(0.158655, rel=1e-5)


def test_the_fit_is_the_learners_fit():
    quantiles = np.sort(np.random.default_rng(0).gamma(3.0, size=25))
    fitted, learned = fit_tails(quantiles, 3.0, 1.7), fit_weibull(quantiles[-8:], LEVELS[-8:])
    assert (fitted.shape, fitted.scale) == (
        pytest.approx(float(learned.shape), rel=1e-4),
        pytest.approx(float(learned.scale), rel=1e-4),
    )


def test_mistakes_are_explained():
    with pytest.raises(UserError, match="above 0"):
        fit_tails(np.zeros(25), 0.0, 1.0)
    with pytest.raises(UserError, match="noisy"):
        state_action_chain(coin().replace(width=np.ones((1, 2))), np.array([[0.5, 0.5]]))
