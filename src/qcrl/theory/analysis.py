"""A policy's quantiles at one level, the weight mu of Corollary 1, and the constants of the assumptions, as measured.

Expectations over a step run over the action, the next state and the noise in the cost, by quadrature. Every array with
the axes (S, A, T, K) is indexed by state, action, next state and noise node. Two nodes without weight sit at the ends
of the noise, so that a maximum over nodes is a maximum over the noise.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from qcrl.errors import UserError
from qcrl.theory.cmdp import CMDP, check_policy
from qcrl.theory.density import Density, density


@dataclass(frozen=True)
class Constants:
    """What Assumptions 1 to 3 hold with, as measured."""

    bound: float
    """R of Assumption 1, equations (7) and (8)."""
    epsilon_assumed: float
    """Epsilon of Assumption 2, (9), as printed: mean slopes of the CDF against the density at the quantile."""
    epsilon_used: float
    """Epsilon of step (b) in the proof, (54): mean slopes against the density at the target (q - c) / discount."""
    lipschitz: float = math.nan
    """C_u of Assumption 3 on the pair of policies."""

    @property
    def epsilon(self) -> float:
        """The epsilon with which the proof goes through."""
        return max(self.epsilon_assumed, self.epsilon_used)

    @property
    def met(self) -> bool:
        """Whether the assumptions hold: epsilon below 1/2."""
        return self.epsilon < 0.5

    @property
    def slack(self) -> float:
        """epsilon R / (1 - epsilon), the right-hand side of Theorem 1; infinite where epsilon reaches 1."""
        return self.epsilon * self.bound / (1 - self.epsilon) if self.epsilon < 1 else math.inf


@dataclass(frozen=True, eq=False)
class Analysis:
    """A policy's quantiles at one level, and what the theory makes of them."""

    cmdp: CMDP
    policy: Float[np.ndarray, "S A"]
    level: float
    distribution: list[Density]
    quantile: Float[np.ndarray, " S"]
    probability: Float[np.ndarray, "S A T K"]
    """Of action, next state and noise node, given the state."""
    possible: Bool[np.ndarray, "S A T K"]
    """Whether action and next state can occur."""
    cost: Float[np.ndarray, "S A T K"]
    """Cost of the step, noise included."""
    target: Float[np.ndarray, "S A T K"]
    """(q(s) - c) / discount: what must still come for the sum to be the quantile."""
    weight: Float[np.ndarray, "S A T K"]
    """mu = p_{X(s')}(target) / (discount p_{X(s)}(q(s))), equation (62)."""
    below: Float[np.ndarray, "S A T K"]
    """F_{X(s')}(target): the chance to end at or below the quantile. Its mean in each state is the level."""
    at_quantile: Float[np.ndarray, " S"]
    """p_{X(s)}(q(s))."""

    @cached_property
    def constants(self) -> Constants:
        """R and both epsilons over everything that can happen."""
        gap = self.quantile[None, None, :, None] - self.target  # the TD error divided by the discount
        bound = float(np.abs(gap)[self.possible].max())
        for s, a, t in np.argwhere(self.possible[..., 0]):
            for below in self.below[s, a, t, [0, -1]]:  # the ends will do: it is monotone in the noise
                bound = max(bound, float(abs(self.quantile[s] - self.distribution[s].quantile(below))))

        offsets = bound * np.linspace(-1, 1, 400)  # an even number: 0 is left out
        slopes = [(each.cdf(q + offsets) - self.level) / offsets for each, q in zip(self.distribution, self.quantile)]
        assumed = max(_worst_ratio(p, slope) for p, slope in zip(self.at_quantile, slopes))
        far = self.possible & (np.abs(gap) > 1e-4 * bound)
        at_target = self.weight * self.cmdp.discount * self.at_quantile[:, None, None, None]
        used = _worst_ratio(at_target[far], (self.level - self.below[far]) / gap[far])
        return Constants(bound, assumed, used)

    @property
    def backup(self) -> Float[np.ndarray, "S A T K"]:
        """c + discount q(s')."""
        return self.cost + self.cmdp.discount * self.quantile[None, None, :, None]

    @property
    def td(self) -> Float[np.ndarray, "S A T K"]:
        """c + discount q(s') - q(s)."""
        return self.backup - self.quantile[:, None, None, None]

    @property
    def additional_cost(self) -> Float[np.ndarray, "S A T K"]:
        """c~ = (mu - 1)(c + discount q(s')), Theorem 2 and (95)."""
        return (self.weight - 1) * self.backup

    @property
    def advantage(self) -> Float[np.ndarray, "S A T K"]:
        """A_u = c + c~ + discount q(s') - q(s), equation (6)."""
        return self.weight * self.backup - self.quantile[:, None, None, None]

    @property
    def cdf_advantage(self) -> Float[np.ndarray, "S A T K"]:
        """(u - F_{X(s')}(target)) / p_{X(s)}(q(s)): mu TD before its linearisation. Its mean under the policy is 0."""
        return (self.level - self.below) / self.at_quantile[:, None, None, None]

    @property
    def distorted_policy(self) -> Float[np.ndarray, "S A"]:
        """pi~ = pi mu, Lemma 1 and (64), with the noise summed out."""
        return (self.probability * self.weight).sum((2, 3))

    def mean(self, values: Float[np.ndarray, "S A T K"]) -> Float[np.ndarray, "S A"]:
        """Expectation over next state and noise, given state and action."""
        return (self.given_action * values).sum((2, 3))

    @property
    def given_action(self) -> Float[np.ndarray, "S A T K"]:
        return self.cmdp.transition[..., None] * noise_nodes()[1]


def noise_nodes() -> tuple[np.ndarray, np.ndarray]:
    """Quadrature for triangular noise on [0, 1]: Gauss-Legendre on each half, and the two ends with weight 0."""
    node, weight = np.polynomial.legendre.leggauss(12)
    node, weight = (node + 1) / 4, weight / 4
    nodes = np.concatenate([[0], node, 1 - node[::-1], [1]])
    half = 4 * node * weight
    return nodes, np.concatenate([[0], half, half[::-1], [0]])


def analyse(
    cmdp: CMDP, policy: Float[np.ndarray, "S A"], level: float, distribution: list[Density] | None = None
) -> Analysis:
    """Quantiles, weights and whatever else the results are made of, for one policy and level.

    `distribution` is the policy's cost-to-go where it is known from another level; otherwise it is solved for.
    """
    policy = check_policy(cmdp, policy)
    if not 0 < level < 1:
        raise UserError(f"the level is {level}; choose one between 0 and 1")
    if not (cmdp.width > 0).all():
        raise UserError(
            "some costs have no noise, so the cost-to-go may have atoms or no density, and the weight mu is not "
            "defined; give every cost a noise width above 0, or use the grid bracket, which needs no density"
        )
    distribution = density(cmdp, policy) if distribution is None else distribution
    quantile = np.array([each.quantile(level) for each in distribution])
    at_quantile = np.array([float(each.pdf(q)) for each, q in zip(distribution, quantile)])
    nodes, weights = noise_nodes()
    shape = (*cmdp.transition.shape, len(nodes))
    cost = np.broadcast_to(cmdp.cost[:, :, None, None] + cmdp.width[:, :, None, None] * nodes, shape)
    target = (quantile[:, None, None, None] - cost) / cmdp.discount
    at_target = np.stack([each.pdf(target[:, :, t]) for t, each in enumerate(distribution)], 2)
    joint = policy[:, :, None, None] * cmdp.transition[..., None]
    possible = np.broadcast_to(joint > 0, shape)
    weight = at_target / (cmdp.discount * at_quantile[:, None, None, None])
    below = np.stack([each.cdf(target[:, :, t]) for t, each in enumerate(distribution)], 2)
    return Analysis(
        cmdp=cmdp,
        policy=policy,
        level=level,
        distribution=distribution,
        quantile=quantile,
        probability=joint * weights,
        possible=possible,
        cost=cost,
        target=target,
        weight=weight,
        below=below,
        at_quantile=at_quantile,
    )


def _worst_ratio(density_value: np.ndarray | float, slope: np.ndarray) -> float:
    """max |1 - density / slope|; infinite where the CDF is flat."""
    if slope.size == 0:
        return 0.0
    if (slope <= 0).any():
        return math.inf
    return float(np.abs(1 - density_value / slope).max())
