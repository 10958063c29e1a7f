"""Exact optima against brute force, dynamic programming and simulation."""

from itertools import product

import numpy as np
import pytest

from qcrl import UserError
from qcrl.theory import (
    CMDP,
    bracket,
    evaluate_stationary,
    random_cmdp,
    random_policy,
    simulate,
    solve,
    solve_stationary,
)
from qcrl.theory.examples import MACHINE_HORIZON, MACHINE_LIMIT, machine

pytestmark = pytest.mark.filterwarnings("error")


def gamble() -> CMDP:
    """Each of the steps: safe for reward 1, or risky for reward 3 and cost 1 with probability 1/2."""
    transition = np.array([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]]])
    # The second state is "the last gamble failed": its cost falls due there.
    return CMDP(
        transition, np.array([[1.0, 3.0], [1.0, 3.0]]), np.array([[0.0, 0.0], [1.0, 1.0]]), np.zeros((2, 2)), 1.0
    )


def test_programme_equals_brute_force_on_two_coin_tosses():
    # Steps 1 and 2 may gamble; step 3 only pays for step 2's failure. Limit 0, so every failure is an outage.
    # Gambling once: outage 1/2, return +2. Mixed with never gambling, probability p buys 4 p of return, up to p = 1/2.
    # Gambling twice after a first failure is free: the outage has happened.
    for probability in (0.0, 0.1, 0.3):
        best = solve(gamble(), horizon=3, limit=0, probability=probability)
        # A failed first gamble (probability p) is followed by free gambles at steps 2 and 3: +2 each.
        # Step 3's gamble is free for all.
        assert best.expected_return == pytest.approx(3 + 2 + 2 * probability / 0.5 + 2 * probability, abs=1e-8)
        assert best.outage <= probability + 1e-9


def test_without_a_binding_limit_the_programme_is_dynamic_programming():
    rng = np.random.default_rng(0)
    cmdp = random_cmdp(rng, states=4, actions=3, deterministic=False)
    cmdp = cmdp.replace(discount=1.0, width=np.zeros_like(cmdp.width), cost=np.round(2 * cmdp.cost))
    values = np.zeros(4)
    for _ in range(6):
        values = (cmdp.reward + cmdp.transition @ values).max(-1)
    assert solve(cmdp, 6, 5, 1.0).expected_return == pytest.approx(values[0], rel=1e-9)


def test_evaluation_equals_the_grid_and_the_simulation():
    rng = np.random.default_rng(1)
    cmdp = machine()
    policy = random_policy(cmdp, rng)
    found = evaluate_stationary(cmdp, policy, MACHINE_HORIZON, MACHINE_LIMIT)
    exact = bracket(cmdp, policy, horizon=MACHINE_HORIZON, spacing=1.0)
    assert found.outage == pytest.approx(exact.outage(MACHINE_LIMIT)[0, 0], rel=1e-12)
    sampled = simulate(cmdp, policy, 100_000, rng, horizon=MACHINE_HORIZON) > MACHINE_LIMIT
    assert found.outage == pytest.approx(sampled.mean(), abs=4 * np.sqrt(found.outage / 100_000))
    # The reward as cost: its mean is the return.
    priced = cmdp.replace(cost=2 * cmdp.reward)
    mean = bracket(priced, policy, horizon=MACHINE_HORIZON, spacing=1.0).mean()[0, 0] / 2
    assert found.expected_return == pytest.approx(mean, rel=1e-10)


def test_search_finds_the_best_of_a_fine_grid_and_stays_below_the_programme():
    cmdp, probability = machine(), 0.1
    best = solve(cmdp, MACHINE_HORIZON, MACHINE_LIMIT, probability)
    found = solve_stationary(cmdp, MACHINE_HORIZON, MACHINE_LIMIT, probability, restarts=4)
    assert found.outage <= probability + 1e-7
    grid = 0.0
    for chances in product(np.linspace(0, 1, 11), np.linspace(0, 0.2, 11), (0.0, 0.5, 1.0)):
        hard = np.array(chances)
        tried = evaluate_stationary(cmdp, np.stack([1 - hard, hard], -1), MACHINE_HORIZON, MACHINE_LIMIT)
        if tried.outage <= probability:
            grid = max(grid, tried.expected_return)
    assert grid <= found.expected_return + 1e-6
    assert found.expected_return < best.expected_return
    assert found.expected_return == pytest.approx(grid, rel=0.01)
    assert best.outage == pytest.approx(probability, abs=1e-8)


def test_the_programmes_policy_earns_what_it_promises():
    cmdp = machine()
    best = solve(cmdp, MACHINE_HORIZON, MACHINE_LIMIT, 0.1)
    distribution = np.zeros((3, MACHINE_LIMIT + 2))
    distribution[0, 0] = 1
    earned = 0.0
    for policy in np.nan_to_num(best.policy, nan=0.5):
        after = np.zeros_like(distribution)
        for s, k, a in np.ndindex(3, MACHINE_LIMIT + 2, 2):
            mass = distribution[s, k] * policy[s, k, a]
            earned += mass * cmdp.reward[s, a]
            after[:, min(k + int(cmdp.cost[s, a]), MACHINE_LIMIT + 1)] += mass * cmdp.transition[s, a]
        distribution = after
    assert earned == pytest.approx(best.expected_return, rel=1e-7)
    assert distribution[:, -1].sum() == pytest.approx(best.outage, abs=1e-7)


def test_mistakes_are_explained():
    always = CMDP(np.ones((1, 1, 1)), np.ones((1, 1)), np.ones((1, 1)), np.zeros((1, 1)), 1.0)
    with pytest.raises(UserError, match="raise the limit"):
        solve(always, 5, 2, 0.1)
    with pytest.raises(UserError, match="raise the limit"):
        solve_stationary(always, 5, 2, 0.1)
    with pytest.raises(UserError, match="set it to 1"):
        solve(always.replace(discount=0.9), 5, 2, 0.1)
    with pytest.raises(UserError, match="whole numbers"):
        solve(always.replace(cost=np.full((1, 1), 0.5)), 5, 2, 0.1)
