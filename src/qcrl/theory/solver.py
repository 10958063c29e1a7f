"""The outage-constrained optimum of small problems: over all policies by linear programming, over stationary by search.

Both work on whole-number costs over a finite horizon without discount, on the state extended by time and accumulated
cost. An accumulated cost above the limit is kept as limit + 1: an outage, whatever follows.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Float
from scipy.optimize import LinearConstraint, linprog, minimize
from scipy.sparse import coo_matrix

from qcrl.errors import UserError
from qcrl.theory.cmdp import CMDP, check_policy, random_policy


@dataclass(frozen=True, eq=False)
class Solution:
    """A policy with its exact return and outage.

    `policy` has the shape (S, A), or with history (horizon, S, limit + 2, A) and NaN where it never comes.
    """

    expected_return: float
    outage: float
    policy: np.ndarray


@dataclass(frozen=True, eq=False)
class Extended:
    """The problem on (state, accumulated cost): where an action leads."""

    cmdp: CMDP
    horizon: int
    limit: int

    def __post_init__(self) -> None:
        cmdp = self.cmdp
        if cmdp.discount != 1:
            raise UserError(f"the discount is {cmdp.discount}; the solvers take undiscounted problems: set it to 1")
        if cmdp.width.any() or (cmdp.cost != np.round(cmdp.cost)).any():
            raise UserError("some costs are noisy or not whole numbers; scale them to whole numbers without noise")
        if self.limit != int(self.limit) or self.limit < 0 or self.horizon < 1:
            raise UserError(
                f"limit {self.limit} and horizon {self.horizon} do not work; give whole numbers, at least 0 and 1"
            )

    @property
    def levels(self) -> int:
        return int(self.limit) + 2

    @property
    def following(self) -> np.ndarray:
        """Accumulated cost after a step, with the axes (S, A, level)."""
        return np.minimum(self.cmdp.cost[..., None].astype(int) + np.arange(self.levels), self.levels - 1)

    def backward(self, after: np.ndarray) -> np.ndarray:
        """E[after(s', k') | s, k, a] from values on (..., S, level); axes (..., S, level, A)."""
        s, a = np.ogrid[: self.cmdp.states, : self.cmdp.actions]
        expected = np.einsum("sat,...tk->...sak", self.cmdp.transition, after)
        return np.moveaxis(expected[..., s[..., None], a[..., None], self.following], -2, -1)

    def forward(self, visits: np.ndarray) -> np.ndarray:
        """The distribution on (S, level) after visits on (S, level, A)."""
        after = np.zeros((self.cmdp.states, self.levels))
        moved = np.zeros((self.cmdp.states, self.cmdp.actions, self.levels))
        s, a = np.ogrid[: self.cmdp.states, : self.cmdp.actions]
        np.add.at(moved, (s[..., None], a[..., None], self.following), np.moveaxis(visits, -1, 1))
        after += np.einsum("sat,sak->tk", self.cmdp.transition, moved)
        return after

    def start(self) -> np.ndarray:
        distribution = np.zeros((self.cmdp.states, self.levels))
        distribution[self.cmdp.start, 0] = 1
        return distribution

    def final(self) -> np.ndarray:
        """What counts at the end, for return and outage: axes (2, S, level)."""
        values = np.zeros((2, self.cmdp.states, self.levels))
        values[1, :, -1] = 1
        return values

    def evaluate(self, policy: Float[np.ndarray, "T S K A"]) -> tuple[np.ndarray, np.ndarray]:
        """Return and outage of a policy, and their derivatives with respect to it: axes (2,), (2, T, S, level, A)."""
        reward = np.stack([self.cmdp.reward, np.zeros_like(self.cmdp.reward)])[:, :, None, :]
        values, derivative = self.final(), np.empty((2, *policy.shape))
        for time in reversed(range(self.horizon)):
            derivative[:, time] = reward + self.backward(values)
            values = np.einsum("ska,vska->vsk", policy[time], derivative[:, time])
        distribution = self.start()
        for time in range(self.horizon):
            derivative[:, time] *= distribution[..., None]
            distribution = self.forward(distribution[..., None] * policy[time])
        return values[:, self.cmdp.start, 0], derivative

    def spread(self, policy: Float[np.ndarray, "T S 1 A"]) -> Float[np.ndarray, "T S K A"]:
        """A policy that does not see all of time and accumulated cost (axes of length 1), for each of them."""
        return np.broadcast_to(policy, (self.horizon, self.cmdp.states, self.levels, self.cmdp.actions))


def evaluate_stationary(cmdp: CMDP, policy: np.ndarray, horizon: int, limit: int) -> Solution:
    """Exact expected return and Pr(cost > limit) of a stationary policy."""
    policy = check_policy(cmdp, policy)
    extended = Extended(cmdp, horizon, limit)
    expected_return, outage = extended.evaluate(extended.spread(policy[None, :, None]))[0]
    return Solution(float(expected_return), float(outage), policy)


def solve(cmdp: CMDP, horizon: int, limit: int, probability: float) -> Solution:
    """The best return over all policies, history-dependent and randomised, with Pr(cost > limit) <= probability.

    Time and accumulated cost are all of the history that matters, so the visits to (time, state, accumulated cost,
    action) solve a linear programme: they flow forward, and at most `probability` of them ends above the limit.
    """
    extended = Extended(cmdp, horizon, limit)
    levels, nodes = extended.levels, cmdp.states * extended.levels
    index = np.arange(horizon * nodes * cmdp.actions).reshape(horizon, cmdp.states, levels, cmdp.actions)
    node = np.arange((horizon + 1) * nodes).reshape(horizon + 1, cmdp.states, levels)
    time, s, k, a, t = (axis.ravel() for axis in np.indices((*index.shape, cmdp.states)))
    chance = cmdp.transition[s, a, t]
    kept = chance > 0
    time, s, k, a, t, chance = (each[kept] for each in (time, s, k, a, t, chance))
    arrives = node[time + 1, t, extended.following[s, a, k]]
    variable = index[time, s, k, a]
    inflow = coo_matrix((chance, (arrives, variable)), shape=(node.size, index.size)).tocsr()
    owner = np.broadcast_to(node[:-1, :, :, None], index.shape).ravel()
    outflow = coo_matrix((np.ones(index.size), (owner, np.arange(index.size))), shape=(node.size, index.size)).tocsr()
    source = np.zeros(node.size)
    source[: cmdp.states * levels] = extended.start().ravel()
    inner = horizon * nodes
    outage_row = inflow[node[horizon, :, levels - 1]].sum(0)
    reward = np.broadcast_to(cmdp.reward[None, :, None, :], index.shape).ravel()
    result = linprog(
        -reward,
        A_ub=np.asarray(outage_row),
        b_ub=[probability],
        A_eq=(outflow - inflow)[:inner],
        b_eq=source[:inner],
        method="highs",
    )
    if result.status != 0:
        raise UserError(
            f"no policy keeps Pr(cost > {limit}) <= {probability} over {horizon} steps; "
            "raise the limit or the probability"
        )
    visits = np.maximum(result.x, 0).reshape(index.shape)
    total = visits.sum(-1, keepdims=True)
    policy = np.divide(visits, total, out=np.full_like(visits, np.nan), where=total > 1e-12)
    return Solution(-float(result.fun), float((np.asarray(outage_row) @ result.x).item()), policy)


def solve_stationary(
    cmdp: CMDP, horizon: int, limit: int, probability: float, restarts: int = 20, seed: int = 0
) -> Solution:
    """The best stationary policy found by local searches with exact gradients from random and deterministic starts."""
    extended = Extended(cmdp, horizon, limit)
    shape = cmdp.cost.shape

    def evaluate(policy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, derivative = extended.evaluate(extended.spread(policy[None, :, None]))
        return values, derivative.sum((1, 3))

    rng = np.random.default_rng(seed)
    few = cmdp.actions**cmdp.states <= 1024
    choices = product(range(cmdp.actions), repeat=cmdp.states) if few else ()
    deterministic = [np.eye(cmdp.actions)[list(choice)] for choice in choices]
    feasible = [policy for policy in deterministic if evaluate(policy)[0][1] <= probability]
    starts = [0.9 * policy + 0.1 / cmdp.actions for policy in feasible[:restarts]]
    starts += [random_policy(cmdp, rng, spread=2.0) for _ in range(restarts)]

    def constraint(flat):
        return probability - evaluate(flat.reshape(shape))[0][1]

    def constraint_gradient(flat):
        return -evaluate(flat.reshape(shape))[1][1].ravel()

    def objective(flat):
        (expected_return, _), (gradient, _) = evaluate(flat.reshape(shape))
        return -expected_return, -gradient.ravel()

    rows = LinearConstraint(np.kron(np.eye(cmdp.states), np.ones(cmdp.actions)), 1, 1)
    candidates = list(feasible)
    for start in starts:
        result = minimize(
            objective,
            start.ravel(),
            jac=True,
            method="SLSQP",
            bounds=[(0, 1)] * start.size,
            constraints=[rows, {"type": "ineq", "fun": constraint, "jac": constraint_gradient}],
            options={"maxiter": 200, "ftol": 1e-10},
        )
        policy = np.clip(result.x.reshape(shape), 0, 1)
        candidates.append(policy / policy.sum(-1, keepdims=True))
    solutions = [evaluate_stationary(cmdp, policy, horizon, limit) for policy in candidates]
    return best_allowed(solutions, "stationary policy", limit, probability, horizon)


def best_allowed(solutions: list[Solution], whose: str, limit: int, probability: float, horizon: int) -> Solution:
    """The one with the highest return among those that keep to the probability."""
    allowed = [each for each in solutions if each.outage <= probability + 1e-7]
    if not allowed:
        raise UserError(
            f"no {whose} was found with Pr(cost > {limit}) <= {probability} over {horizon} steps; "
            "raise the limit, the probability or the number of restarts"
        )
    return max(allowed, key=lambda each: each.expected_return)
