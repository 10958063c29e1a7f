"""What the budget is worth: the programme against brute force, and Outage-PPO against the programme."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from qcrl import UserError
from qcrl.theory import CMDP, evaluate_stationary, random_policy, solve_stationary
from qcrl.theory.budget import evaluate_policy, solve_budget, solve_timed
from qcrl.theory.examples import COURIER_HORIZON, COURIER_LIMIT, MACHINE_HORIZON, MACHINE_LIMIT, courier, machine
from qcrl.theory.learning import tabulate_budget, train_with_budget

MACHINE = machine(), MACHINE_HORIZON, MACHINE_LIMIT
COURIER = courier(), COURIER_HORIZON, COURIER_LIMIT
BRIEF = {"learning_rate_halving": 30.0, "window": 2048, "driver_window": 2048}


def risk() -> CMDP:
    """Safe for reward 1 or risky for 2 and a loss with probability .3; a loss costs 1 in the step after it."""
    transition = np.array([[[1.0, 0.0], [0.7, 0.3]], [[1.0, 0.0], [0.7, 0.3]]])
    cost = np.array([[0.0, 0.0], [1.0, 1.0]])
    return CMDP(transition, np.array([[1.0, 2.0], [0.5, 1.0]]), cost, np.zeros((2, 2)), 1.0)


def deterministic(cmdp, horizon, limit, seen):
    """Return and outage of every deterministic policy, whose choices may differ where `seen` (a table) does."""
    tables = product(range(cmdp.actions), repeat=int(seen.max()) + 1)
    chosen = (np.eye(cmdp.actions)[np.array(choice)[seen]] for choice in tables)
    return np.array([evaluate_policy(cmdp, horizon, limit, policy) for policy in chosen])


def envelope(points, outage):
    """The best return of mixtures of two of these points at this outage or less."""
    below, above = points[points[:, 1] <= outage], points[points[:, 1] > outage]
    if not len(above):
        return below[:, 0].max()
    share = (outage - below[:, None, 1]) / (above[None, :, 1] - below[:, None, 1])
    return max(below[:, 0].max(), (below[:, None, 0] + share * (above[None, :, 0] - below[:, None, 0])).max())


def test_the_programme_is_the_envelope_of_all_deterministic_policies():
    cmdp, horizon, limit = risk(), 3, 0
    # All of time, spent and state: 12 places, of which the first has one state and no cost yet.
    seen = np.arange(horizon * 2 * 2).reshape(horizon, 2, 2)
    points = deterministic(cmdp, horizon, limit, seen)
    assert len(points) == 2**12
    for probability in (0.0, 0.05, 0.2, 0.3, 0.4, 0.8):
        best = solve_budget(cmdp, horizon, limit, probability)
        assert best.expected_return == pytest.approx(envelope(points, probability), abs=1e-8)
        assert best.outage <= probability + 1e-9


def test_without_the_budget_no_deterministic_policy_is_better_than_the_one_found():
    cmdp, horizon, limit = risk(), 4, 1
    seen = np.broadcast_to(np.arange(horizon * 2).reshape(horizon, 1, 2), (horizon, limit + 2, 2))
    points = deterministic(cmdp, horizon, limit, seen)
    for probability in (0.02, 0.1, 0.3):
        found = solve_timed(cmdp, horizon, limit, probability, restarts=3)
        assert (found.policy == found.policy[:, :1]).all()
        assert evaluate_policy(cmdp, horizon, limit, found.policy) == pytest.approx(found[:2])
        assert found.outage <= probability + 1e-7
        assert found.expected_return >= points[points[:, 1] <= probability, 0].max() - 1e-6
        assert found.expected_return <= solve_budget(cmdp, horizon, limit, probability).expected_return + 1e-7


@pytest.mark.parametrize("probability", [0.02, 0.1, 0.4])
def test_the_programmes_policy_earns_what_it_promises(probability):
    best = solve_budget(*MACHINE, probability)
    assert best.policy.shape == (MACHINE_HORIZON, MACHINE_LIMIT + 2, 3, 2)
    assert evaluate_policy(*MACHINE, best.policy) == pytest.approx((best.expected_return, probability), rel=1e-7)


def test_the_worth_of_a_stationary_policy_is_what_the_other_recursion_says():
    policy = random_policy(machine(), np.random.default_rng(0))
    table = np.broadcast_to(policy, (MACHINE_HORIZON, MACHINE_LIMIT + 2, 3, 2))
    exact = evaluate_stationary(machine(), policy, MACHINE_HORIZON, MACHINE_LIMIT)
    assert evaluate_policy(*MACHINE, table) == pytest.approx((exact.expected_return, exact.outage), rel=1e-12)


def test_the_budget_is_worth_more_to_the_courier_than_to_the_machine():
    worth = {}
    for name, task in (("machine", MACHINE), ("courier", COURIER)):
        found = solve_timed(*task, 0.1, restarts=1).expected_return
        worth[name] = 1 - found / solve_budget(*task, 0.1).expected_return
    assert worth["machine"] == pytest.approx(0.010, abs=0.004)
    assert worth["courier"] == pytest.approx(0.035, abs=0.004)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train_with_budget(tmp_path_factory.mktemp("budget") / "run", MACHINE, 0.1, [0], iterations=120, **BRIEF)


def test_mistakes_are_explained(trained):
    with pytest.raises(UserError, match=r"give it the shape \(20, 4, 3, 2\)"):
        evaluate_policy(*MACHINE, np.full((20, 3, 3, 2), 0.5))
    with pytest.raises(UserError, match="raise the limit"):
        solve_timed(machine(), MACHINE_HORIZON, MACHINE_LIMIT, 0.001)
    policy = trained.policy()
    policy.algorithm = replace(policy.algorithm, cost_input="observation")
    with pytest.raises(UserError, match="sees more than state, time and budget"):
        tabulate_budget(policy, *MACHINE)


def test_outage_ppo_keeps_the_outage_and_comes_close_to_the_programme(trained):
    earned, outage = evaluate_policy(*MACHINE, tabulate_budget(trained.policy(), *MACHINE))
    assert outage <= 1.3 * 0.1
    assert earned >= 0.95 * solve_budget(*MACHINE, outage).expected_return
    # Above what no policy without clock and budget can earn, at the same outage.
    assert earned > solve_stationary(*MACHINE, outage, restarts=2).expected_return
    # Policies that ignore the reward or the constraint would not pass.
    gentle, hard = (evaluate_policy(*MACHINE, np.broadcast_to(row, (20, 4, 3, 2))) for row in np.eye(2))
    assert hard[1] > 0.7
    assert gentle[0] < 0.6 * solve_budget(*MACHINE, 0.1).expected_return


def test_the_table_is_what_the_policy_does(trained):
    policy = trained.policy()
    table = tabulate_budget(policy, *MACHINE)
    rng = np.random.default_rng(0)
    uncertain = np.argwhere((table[..., 0] > 0.2) & (table[..., 0] < 0.8))
    places = [tuple(place) for place in uncertain[:: max(1, len(uncertain) // 4)][:4]] + [(0, 0, 0, 0), (19, 3, 1, 0)]
    for time, spent, state, *_ in places:
        carry = policy.initial()._replace(spent=np.array([spent], np.float32), time=float(time))
        drawn = [int(policy(np.eye(3)[state], carry, cost=0.0, rng=rng)[0]) for _ in range(300)]
        chance = table[time, spent, state, 1]
        assert np.mean(drawn) == pytest.approx(chance, abs=4 * np.sqrt(chance * (1 - chance) / 300) + 1e-3)
