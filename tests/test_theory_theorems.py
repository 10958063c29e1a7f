"""The paper's results on random problems, with constants measured on each."""

import math
from dataclasses import replace

import numpy as np
import pytest

from qcrl import UserError
from qcrl.theory import (
    CMDP,
    analyse,
    bracket,
    cdf_form,
    check_all,
    distorted_value,
    kl,
    lipschitz,
    moments,
    policy_dependent_form,
    random_cmdp,
    random_policy,
    simulate,
    softmax,
    td_relation,
    value,
    weight_mean,
)
from qcrl.theory.examples import coin, staged
from qcrl.theory.figures.results import random_pair

pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("problems", [30, pytest.param(100, marks=pytest.mark.large)])
def test_results_hold_on_random_problems_that_meet_the_assumptions(problems):
    checked, seed, tightest = 0, 1000, {}
    while checked < problems:
        cmdp, new, old, level = random_pair(seed)
        seed += 1
        first = analyse(cmdp, new, level)
        if not first.constants.met:
            continue
        second = analyse(cmdp, old, level)
        if not second.constants.met:
            continue
        checks = check_all(first, second, multiplier=0.5)
        assert len(checks) == 7
        for check in checks:
            assert check.holds, f"seed {seed - 1}: {check}"
            if math.isfinite(check.right) and check.right > 0:
                tightest[check.name] = max(tightest.get(check.name, 0), check.left / check.right)
        checked += 1
    # Bounds that hold by miles would hold for wrong numbers, too.
    assert tightest["Theorem 1"] > 0.15
    assert tightest["Theorem 2"] > 0.1


def test_stochastic_dynamics_keep_theorem_1_and_refuse_the_rest():
    rng = np.random.default_rng(1)
    cmdp = random_cmdp(rng, discount=0.95, deterministic=False)
    analysis = analyse(cmdp, random_policy(cmdp, rng), 0.6)
    assert analysis.constants.met
    assert [check.name for check in check_all(analysis, analysis)] == ["E[mu] = 1", "Theorem 1", "Corollary 1"]
    assert all(check.holds for check in check_all(analysis, analysis))
    with pytest.raises(UserError, match="deterministic"):
        distorted_value(analysis)


def test_a_wrong_weight_is_noticed():
    rng = np.random.default_rng(2)
    cmdp = random_cmdp(rng, discount=0.95)
    analysis = analyse(cmdp, random_policy(cmdp, rng), 0.7)
    assert weight_mean(analysis).holds
    assert not weight_mean(replace(analysis, weight=analysis.weight * 1.001)).holds
    assert not cdf_form(replace(analysis, below=analysis.below * 0.999)).holds
    # Weights that shrink the costs make an error that no bound covers.
    assert not policy_dependent_form(replace(analysis, weight=analysis.weight * 0.5)).holds


def test_the_distorted_policy_is_the_policy_of_the_episodes_that_land_on_the_quantile():
    rng = np.random.default_rng(4)
    cmdp = random_cmdp(rng, discount=0.8)
    policy = random_policy(cmdp, rng)
    analysis = analyse(cmdp, policy, 0.9)
    # Which first actions do episodes take whose cost ends within a hair of the quantile?
    shares = []
    for action in range(cmdp.actions):
        first = policy.copy()
        first[cmdp.start] = np.eye(cmdp.actions)[action]
        # A copy of the start state that is only visited first keeps the rest of the policy as it is.
        doubled = cmdp.replace(
            transition=np.concatenate(
                [
                    np.pad(cmdp.transition, ((0, 0), (0, 0), (0, 1))),
                    np.pad(cmdp.transition[:1], ((0, 0), (0, 0), (0, 1))),
                ]
            ),
            reward=np.vstack([cmdp.reward, cmdp.reward[:1]]),
            cost=np.vstack([cmdp.cost, cmdp.cost[:1]]),
            width=np.vstack([cmdp.width, cmdp.width[:1]]),
            start=cmdp.states,
        )
        sampled = simulate(doubled, np.vstack([policy, first[:1]]), 100_000, rng, tolerance=1e-4)
        shares.append(policy[0, action] * (np.abs(sampled - analysis.quantile[0]) < 0.03).mean())
    np.testing.assert_allclose(analysis.distorted_policy[0], np.array(shares) / sum(shares), atol=0.02)
    np.testing.assert_allclose(analysis.distorted_policy.sum(-1), 1, atol=1e-8)


def test_the_mean_of_the_additional_cost_bridges_mean_and_quantile():
    rng = np.random.default_rng(5)
    cmdp = random_cmdp(rng, discount=0.95)
    policy = random_policy(cmdp, rng)
    analysis = analyse(cmdp, policy, 0.8)
    bridged = moments(cmdp, policy)[0] + value(cmdp, policy, analysis.mean(analysis.additional_cost))
    assert policy_dependent_form(analysis).left == pytest.approx(np.abs(analysis.quantile - bridged).max(), rel=1e-9)


@pytest.mark.parametrize("discount", [0.9, 0.95])
def test_theorem_2_overshoots_by_the_discount_where_costs_are_independent(discount):
    # Gaussian limit of independent steps: tilting every step to the full quantile adds (1 - discount**2) (q - mean) a
    # step, which sums to (1 + discount) (q - mean), though q - mean is what is missing.
    policy = np.ones((1, 1))
    cmdp = CMDP(np.ones((1, 1, 1)), np.zeros((1, 1)), np.zeros((1, 1)), np.ones((1, 1)), discount)
    analysis = analyse(cmdp, policy, 0.9)
    added = value(cmdp, policy, analysis.mean(analysis.additional_cost))[0]
    assert added / (analysis.quantile - moments(cmdp, policy)[0])[0] == pytest.approx(1 + discount, rel=0.015)


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_cdf_form_is_exact_with_or_without_the_assumptions(deterministic):
    rng = np.random.default_rng(6)
    cmdp = random_cmdp(rng, discount=0.9, width=0.2, deterministic=deterministic)
    analysis = analyse(cmdp, random_policy(cmdp, rng), 0.95)
    assert not analysis.constants.met
    assert cdf_form(analysis).holds
    assert cdf_form(analysis).left < 1e-6


def test_assumption_3_has_no_finite_constant_near_the_old_policy():
    rng = np.random.default_rng(0)
    cmdp = random_cmdp(rng, discount=0.95)
    logits, direction = rng.normal(size=(2, *cmdp.cost.shape))
    base = analyse(cmdp, softmax(logits / 2), 0.9)
    far, near = (analyse(cmdp, softmax(logits / 2 + step * direction), 0.9) for step in (0.1, 0.001))
    distances = kl(far.policy, base.policy), kl(near.policy, base.policy)
    # KL is quadratic in the step, the additional cost is linear in it.
    growth = math.log(lipschitz(base, near) / lipschitz(base, far)) / math.log(distances[1] / distances[0])
    assert growth == pytest.approx(-0.5, abs=0.03)


def test_near_atoms_the_assumptions_fail_and_the_relation_breaks():
    policy = np.full((4, 3), 1 / 3)
    analysis = analyse(staged(0.05), policy, 0.8)
    assert weight_mean(analysis).holds
    assert not analysis.constants.met
    assert "not met" in str(td_relation(analysis))
    low, high = bracket(staged(0.0), policy, points=20_000).quantile(0.8)[0]
    # The quantile itself is well defined to the end: noise of .05 adds .25 to it on average.
    assert low <= analysis.quantile[0] - 0.25 <= high + 0.02
    assert td_relation(analysis).left > 0.5
    with pytest.raises(UserError, match="atoms"):
        analyse(coin(0.5), np.array([[0.5, 0.5]]), 0.9)
