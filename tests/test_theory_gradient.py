"""Gradients of the quantile: the exact one against independent solves, the formulas where they must be exact."""

import numpy as np
import pytest

from qcrl.theory import CMDP, analyse, compare, density, exact_gradients, formulas, random_cmdp, softmax
from qcrl.theory.examples import spread_cmdp
from qcrl.theory.gradient import FORMULAS, cosine

pytestmark = pytest.mark.filterwarnings("error")


def test_exact_gradient_predicts_the_quantile_of_a_shifted_policy():
    rng = np.random.default_rng(0)
    cmdp = random_cmdp(rng, states=3, actions=2, discount=0.9)
    logits, direction = rng.normal(size=(2, 3, 2))
    levels = (0.5, 0.9)
    gradients = exact_gradients(cmdp, logits, levels)
    up, down = (density(cmdp, softmax(logits + step * direction))[0] for step in (1e-3, -1e-3))
    for level, gradient in zip(levels, gradients):
        slope = (up.quantile(level) - down.quantile(level)) / 2e-3
        assert (gradient * direction).sum() == pytest.approx(slope, rel=1e-5)
        np.testing.assert_allclose(gradient.sum(-1), 0, atol=1e-7)


def one_decision(rng: np.random.Generator) -> CMDP:
    """Only the start state, never visited again, has a choice: three ways into one steady state."""
    transition = np.zeros((2, 3, 2))
    transition[:, :, 1] = 1
    cost = np.vstack([rng.uniform(0, 1, 3), np.full(3, 0.3)])
    width = np.vstack([rng.uniform(0.5, 1.5, 3), np.full(3, 0.8)])
    return CMDP(transition, np.zeros((2, 3)), cost, width, discount=0.8)


def test_the_cdf_formula_is_exact_for_a_single_decision():
    rng = np.random.default_rng(1)
    cmdp = one_decision(rng)
    logits = rng.normal(size=(2, 3))
    for level in (0.3, 0.9):
        exact = exact_gradients(cmdp, logits, [level])[0]
        found = formulas(analyse(cmdp, softmax(logits), level))
        assert set(found) == set(FORMULAS)
        np.testing.assert_allclose(found["cdf"], exact, atol=1e-6)
        # Its first-order expansion is close, plain TD less so in the tail; Theorem 4's advantage has another length.
        assert cosine(found["implemented"], exact) > 0.8
        assert np.linalg.norm(found["theorem"] - exact) > 2 * np.linalg.norm(found["implemented"] - exact)


def test_how_good_the_formulas_are_where_actions_differ_in_spread():
    rows = []
    for seed in range(6):
        rng = np.random.default_rng(100 + seed)
        cmdp = spread_cmdp(rng, discount=0.9)
        rows.append([[*row.values()] for row in compare(cmdp, 0.5 * rng.normal(size=cmdp.cost.shape), (0.5, 0.95))])
    cosines, lengths = np.moveaxis(np.median(rows, axis=0), -1, 0)
    of = dict(zip(FORMULAS, cosines.T))
    assert all(of[name][0] > 0.98 for name in ("cdf", "implemented", "smoothed", "naive"))
    assert of["cdf"][1] > 0.85
    assert of["smoothed"][1] > of["implemented"][1]
    assert dict(zip(FORMULAS, lengths.T))["theorem"][1] > 5
