"""What it is worth to see the budget: exact optima with it and without, and the exact worth of any policy that sees it.

Costs are whole numbers, without discount. A policy is a table [time, spent, state, action]: `spent` is what the episode
has cost so far, kept as limit + 1 once it is above the limit.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack, identity, kron

from qcrl.errors import UserError
from qcrl.theory.cmdp import CMDP, check_policy, random_policy
from qcrl.theory.solver import Extended, Solution, best_allowed, solve, solve_stationary

PENALTY = 1e4
"""What a local search pays for an outage above the one asked for, in return."""


class Planned(NamedTuple):
    """A policy with its exact return and outage."""

    expected_return: float
    outage: float
    policy: Float[np.ndarray, "time spent state action"]


def solve_budget(cmdp: CMDP, horizon: int, limit: int, probability: float) -> Planned:
    """The best return of all policies with Pr(cost > limit) <= probability, which is one that sees time and budget.

    The linear programme of `solve`; where its policy never comes, the table holds even chances. At some probabilities
    the optimum draws between two actions somewhere, a mixture of two deterministic policies.
    """
    best = solve(cmdp, horizon, limit, probability)
    policy = np.where(np.isnan(best.policy), 1 / cmdp.actions, best.policy)
    return Planned(best.expected_return, best.outage, np.moveaxis(policy, 2, 1))


def evaluate_policy(
    cmdp: CMDP, horizon: int, limit: int, policy: Float[np.ndarray, "time spent state action"]
) -> tuple[float, float]:
    """Exact expected return and Pr(cost > limit), by a forward recursion."""
    extended = Extended(cmdp, horizon, limit)
    policy = check_policy(cmdp, policy)
    if policy.shape[:2] != (horizon, extended.levels):
        raise UserError(
            f"the policy has shape {policy.shape}; give it the shape {(horizon, extended.levels, *cmdp.cost.shape)}"
        )
    earned, distribution = 0.0, extended.start()
    for now in np.moveaxis(policy, 1, 2):
        visits = distribution[..., None] * now
        earned += float((visits.sum(1) * cmdp.reward).sum())
        distribution = extended.forward(visits)
    return earned, float(distribution[:, -1].sum())


def solve_timed(cmdp: CMDP, horizon: int, limit: int, probability: float, restarts: int = 4, seed: int = 0) -> Planned:
    """The best policy found that sees state and time, but not what was spent.

    The problem is not convex. Local searches start from the best stationary policy, from the optimum with the budget
    averaged over what it has spent, and from random policies.
    """
    extended = Extended(cmdp, horizon, limit)
    rng = np.random.default_rng(seed)
    stationary = solve_stationary(cmdp, horizon, limit, probability, restarts=2, seed=seed).policy
    starts = [np.tile(stationary, (horizon, 1, 1)), _averaged(extended, solve(cmdp, horizon, limit, probability))]
    starts += [np.stack([random_policy(cmdp, rng, 2.0) for _ in range(horizon)]) for _ in range(restarts)]
    tables = starts[:1] + [_climb(extended, 0.95 * start + 0.05 / cmdp.actions, probability) for start in starts]
    solutions = []
    for table in tables:
        policy = np.repeat(table[:, None], extended.levels, axis=1)
        solutions.append(Solution(*evaluate_policy(cmdp, horizon, limit, policy), policy))
    best = best_allowed(solutions, "policy of state and time", limit, probability, horizon)
    return Planned(best.expected_return, best.outage, best.policy)


def _climb(
    extended: Extended, policy: Float[np.ndarray, "time state action"], probability: float, steps: int = 300
) -> Float[np.ndarray, "time state action"]:
    """Linear programmes around the policy of now, each within reach of it: shorter where one did not help."""

    def evaluate(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, derivative = extended.evaluate(extended.spread(table[:, :, None]))
        return values, derivative.sum(3).reshape(2, -1)

    def worth(values: np.ndarray) -> float:
        return float(values[0] - PENALTY * max(0.0, values[1] - probability))

    rows = kron(identity(policy[..., 0].size), np.ones((1, policy.shape[-1])), format="csr")
    (values, derivative), reach = evaluate(policy), 0.3
    for _ in range(steps):
        flat = policy.ravel()
        # The last variable is what the outage may be missed by, at a price.
        result = linprog(
            np.append(-derivative[0], PENALTY),
            A_ub=np.append(derivative[1], -1.0)[None],
            b_ub=[probability - values[1] + derivative[1] @ flat],
            A_eq=hstack([rows, csr_matrix((rows.shape[0], 1))]),
            b_eq=np.ones(rows.shape[0]),
            bounds=[*zip(np.maximum(0, flat - reach), np.minimum(1, flat + reach)), (0, None)],
        )
        tried = np.clip(result.x[:-1], 0, 1).reshape(policy.shape) if result.status == 0 else policy
        tried = tried / tried.sum(-1, keepdims=True)
        moved = evaluate(tried)
        if worth(moved[0]) > worth(values) + 1e-10:
            policy, (values, derivative), reach = tried, moved, min(1.0, 1.5 * reach)
        else:
            reach /= 2
        if reach < 1e-7:
            break
    return policy


def _averaged(extended: Extended, best: Solution) -> Float[np.ndarray, "time state action"]:
    """A policy's chances of actions by time and state alone, as often as it takes them."""
    policy = np.nan_to_num(best.policy, nan=1 / extended.cmdp.actions)
    distribution, averaged = extended.start(), []
    for now in policy:
        visits = distribution[..., None] * now
        taken = visits.sum(1) + 1e-12
        averaged.append(taken / taken.sum(-1, keepdims=True))
        distribution = extended.forward(visits)
    return np.stack(averaged)
