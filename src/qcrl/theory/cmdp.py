"""Finite constrained Markov decision processes: the model, its expectations by linear solves, and simulation.

A step costs c(s, a) plus triangular noise on [0, width(s, a)]. The noise gives the cumulative cost a density, as the
paper's theory asks, and stays bounded, as its Assumption 1 asks. It counts as part of the action, so that a step's cost
is a function of state and action and the dynamics can still be deterministic.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from qcrl.errors import UserError


@dataclass(frozen=True, eq=False)
class CMDP:
    """States, actions, rewards and costs. A policy for it is an array of shape (states, actions)."""

    transition: Float[np.ndarray, "S A S"]
    """Probability of the next state."""
    reward: Float[np.ndarray, "S A"]
    """Reward of a step."""
    cost: Float[np.ndarray, "S A"]
    """Fixed part of a step's cost, not negative."""
    width: Float[np.ndarray, "S A"]
    """Width of the triangular noise on [0, width] that is added to the cost; 0 for none."""
    discount: float = 0.9
    """Discount of rewards and costs; 1 only together with a finite horizon."""
    start: int = 0
    """The state in which an episode starts."""

    def __post_init__(self) -> None:
        for name in ("transition", "reward", "cost", "width"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        shape = self.transition.shape
        if len(shape) != 3 or shape[0] != shape[2]:
            raise UserError(f"transition has shape {shape}; give it the shape (states, actions, states)")
        for name in ("reward", "cost", "width"):
            if getattr(self, name).shape != shape[:2]:
                raise UserError(f"{name} has shape {getattr(self, name).shape}; give it the shape {shape[:2]}")
        if (self.transition < 0).any() or not np.allclose(self.transition.sum(-1), 1, atol=1e-12):
            raise UserError("transition[state, action] is not a probability distribution; make every row sum to 1")
        if (self.cost < 0).any() or (self.width < 0).any():
            raise UserError("a cost or a noise width is negative; shift the costs so that all are at least 0")
        if not 0 < self.discount <= 1:
            raise UserError(f"the discount is {self.discount}; choose one above 0 and at most 1")
        if not 0 <= self.start < shape[0]:
            raise UserError(f"the start state is {self.start}; choose one of 0 to {shape[0] - 1}")

    @property
    def states(self) -> int:
        return self.cost.shape[0]

    @property
    def actions(self) -> int:
        return self.cost.shape[1]

    @property
    def deterministic(self) -> bool:
        """Whether the next state is a function of state and action, as Lemma 1 and Theorems 2 to 4 ask."""
        return bool((self.transition.max(-1) == 1).all())

    @property
    def mean_cost(self) -> Float[np.ndarray, "S A"]:
        return self.cost + self.width / 2

    def replace(self, **changes) -> "CMDP":
        return replace(self, **changes)

    def support(self, horizon: int | None = None) -> tuple[float, float]:
        """Smallest and largest conceivable cumulative cost."""
        weight = total_weight(self.discount, horizon)
        return weight * float(self.cost.min()), weight * float((self.cost + self.width).max())


def total_weight(discount: float, horizon: int | None) -> float:
    """The sum of discount**t over the horizon (None: for ever)."""
    if horizon is None:
        if discount == 1:
            raise UserError("an undiscounted cost over an endless horizon is infinite; give a horizon")
        return 1 / (1 - discount)
    return float(horizon) if discount == 1 else (1 - discount**horizon) / (1 - discount)


def check_policy(cmdp: CMDP, policy: Float[np.ndarray, "... S A"]) -> Float[np.ndarray, "... S A"]:
    policy = np.asarray(policy, dtype=np.float64)
    if policy.shape[-2:] != cmdp.cost.shape:
        raise UserError(f"the policy has shape {policy.shape}; give it the shape {cmdp.cost.shape}")
    if (policy < 0).any() or not np.allclose(policy.sum(-1), 1, atol=1e-9):
        raise UserError("a row of the policy is not a probability distribution; make every row sum to 1")
    return policy / policy.sum(-1, keepdims=True)


def chain(cmdp: CMDP, policy: Float[np.ndarray, "S A"]) -> Float[np.ndarray, "S S"]:
    """The Markov chain of states under the policy."""
    return np.einsum("sa,sat->st", policy, cmdp.transition)


def value(
    cmdp: CMDP, policy: Float[np.ndarray, "S A"], payoff: Float[np.ndarray, "S A"], discount: float | None = None
) -> Float[np.ndarray, " S"]:
    """Expected discounted sum of a payoff r(s, a) from every state."""
    discount = cmdp.discount if discount is None else discount
    matrix = np.eye(cmdp.states) - discount * chain(cmdp, policy)
    return np.linalg.solve(matrix, (policy * payoff).sum(-1))


def occupancy(cmdp: CMDP, policy: Float[np.ndarray, "S A"]) -> Float[np.ndarray, " S"]:
    """rho(s), the discounted number of visits from the start state."""
    matrix = np.eye(cmdp.states) - cmdp.discount * chain(cmdp, policy)
    return np.linalg.solve(matrix.T, np.eye(cmdp.states)[cmdp.start])


def moments(cmdp: CMDP, policy: Float[np.ndarray, "S A"]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the discounted cost-to-go of every state, by linear solves."""
    mean = value(cmdp, policy, cmdp.mean_cost)
    square_of_cost = cmdp.mean_cost**2 + cmdp.width**2 / 24
    cross = 2 * cmdp.discount * cmdp.mean_cost * (cmdp.transition @ mean)
    square = value(cmdp, policy, square_of_cost + cross, discount=cmdp.discount**2)
    return mean, square - mean**2


def simulate(
    cmdp: CMDP,
    policy: Float[np.ndarray, "S A"],
    samples: int,
    rng: np.random.Generator,
    horizon: int | None = None,
    tolerance: float = 1e-6,
) -> Float[np.ndarray, " samples"]:
    """Sampled cumulative costs from the start state. An endless horizon is cut where at most `tolerance` is left."""
    policy = check_policy(cmdp, policy)
    upper = cmdp.support(horizon)[1]
    if horizon is None:
        horizon = max(1, math.ceil(math.log(tolerance / max(upper, tolerance)) / math.log(cmdp.discount)))
    # One draw picks action and next state: each state owns the unit interval that starts at its number.
    joint = (policy[:, :, None] * cmdp.transition).reshape(cmdp.states, -1)
    kept = joint > 0
    edges = (joint.cumsum(-1) + np.arange(cmdp.states)[:, None])[kept]
    owner, action_and_next = np.nonzero(kept)
    cost, width = (table[owner, action_and_next // cmdp.states] for table in (cmdp.cost, cmdp.width))
    following = action_and_next % cmdp.states
    totals = []
    for first in range(0, samples, 50_000):
        count = min(50_000, samples - first)
        state, total = np.full(count, cmdp.start), np.zeros(count)
        for step in range(horizon):
            outcome = np.searchsorted(edges, state + rng.random(count) * (1 - 1e-12))
            total += cmdp.discount**step * cost[outcome]
            if width.any():
                total += cmdp.discount**step * width[outcome] * (rng.random(count) + rng.random(count)) / 2
            state = following[outcome]
        totals.append(total)
    return np.concatenate(totals)


def softmax(logits: Float[np.ndarray, "... A"]) -> Float[np.ndarray, "... A"]:
    weight = np.exp(logits - logits.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True)


def random_policy(cmdp: CMDP, rng: np.random.Generator, spread: float = 0.5) -> Float[np.ndarray, "S A"]:
    """Softmax of Gaussian logits with this standard deviation."""
    return softmax(spread * rng.normal(size=cmdp.cost.shape))


def random_cmdp(
    rng: np.random.Generator,
    states: int = 4,
    actions: int = 3,
    discount: float = 0.9,
    width: float = 0.3,
    deterministic: bool = True,
) -> CMDP:
    """Uniform costs and rewards in [0, 1], noise of about this width, next states drawn at random."""
    if deterministic:
        transition = np.eye(states)[rng.integers(states, size=(states, actions))]
    else:
        transition = rng.dirichlet(np.ones(states), size=(states, actions))
    return CMDP(
        transition=transition,
        reward=rng.random((states, actions)),
        cost=rng.random((states, actions)),
        width=width * rng.uniform(0.5, 1.5, size=(states, actions)),
        discount=discount,
    )
