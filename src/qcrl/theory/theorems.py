"""The paper's results as numbers: each returns both sides, the measured constants, and whether it holds."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from qcrl.errors import UserError
from qcrl.theory.analysis import Analysis, Constants
from qcrl.theory.cmdp import occupancy, value


@dataclass(frozen=True)
class Check:
    """One result of the paper on one problem: left <= right, or left >= right for the improvement bound."""

    name: str
    left: float
    right: float
    holds: bool
    constants: Constants

    def __str__(self) -> str:
        given = "" if self.constants.met else " (assumptions not met)"
        return f"{self.name}: {self.left:.6g} against {self.right:.6g}, {'holds' if self.holds else 'fails'}{given}"


def kl(first: Float[np.ndarray, "S A"], second: Float[np.ndarray, "S A"]) -> float:
    """max_s KL(first || second)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(first > 0, first * np.log(first / second), 0)
    return float(terms.sum(-1).max())


def _at_most(name: str, left: float, right: float, constants: Constants) -> Check:
    return Check(name, float(left), float(right), bool(left <= right + 1e-8 * (1 + abs(right))), constants)


def _need_deterministic(analysis: Analysis, name: str) -> None:
    if not analysis.cmdp.deterministic:
        raise UserError(f"{name} asks for deterministic dynamics; give a CMDP whose next states are certain")


def weight_mean(analysis: Analysis) -> Check:
    """E[mu] = 1 in all states, (68). Left: largest deviation; right: what quadrature and interpolation may leave."""
    deviation = np.abs((analysis.probability * analysis.weight).sum((1, 2, 3)) - 1).max()
    return _at_most("E[mu] = 1", deviation, 1e-5, analysis.constants)


def td_relation(analysis: Analysis) -> Check:
    """Theorem 1, (10): |E[mu (c + discount q(s') - q(s))]| <= epsilon R / (1 - epsilon), at the worst state."""
    left = np.abs((analysis.probability * analysis.weight * analysis.td).sum((1, 2, 3))).max()
    return _at_most("Theorem 1", left, analysis.constants.slack, analysis.constants)


def quantile_backup(analysis: Analysis) -> Check:
    """Corollary 1, (12): |q(s) - E[mu (c + discount q(s'))]| <= epsilon R / (1 - epsilon), at the worst state."""
    backed_up = (analysis.probability * analysis.weight * analysis.backup).sum((1, 2, 3))
    return _at_most(
        "Corollary 1", np.abs(analysis.quantile - backed_up).max(), analysis.constants.slack, analysis.constants
    )


def distorted_value(analysis: Analysis) -> Check:
    """Lemma 1, (13): the quantile against the expected cost of the distorted policy, at the worst start state."""
    _need_deterministic(analysis, "Lemma 1")
    distorted = analysis.distorted_policy
    distorted = distorted / distorted.sum(-1, keepdims=True)
    paid = (analysis.probability * analysis.weight * analysis.cost).sum((2, 3))
    expected = value(analysis.cmdp, distorted, np.divide(paid, distorted, out=np.zeros_like(paid), where=distorted > 0))
    right = analysis.constants.slack / (1 - analysis.cmdp.discount)
    return _at_most("Lemma 1", np.abs(analysis.quantile - expected).max(), right, analysis.constants)


def policy_dependent_form(analysis: Analysis) -> Check:
    """Theorem 2, (14): the quantile against the expected cost plus additional cost of the policy itself."""
    _need_deterministic(analysis, "Theorem 2")
    expected = value(analysis.cmdp, analysis.policy, analysis.mean(analysis.cost + analysis.additional_cost))
    right = analysis.constants.slack / (1 - analysis.cmdp.discount)
    return _at_most("Theorem 2", np.abs(analysis.quantile - expected).max(), right, analysis.constants)


def cdf_form(analysis: Analysis) -> Check:
    """Not in the paper: with cdf_advantage - TD as additional cost the expectation form has no error.

    It asks for neither smoothness nor deterministic dynamics. Right: what quadrature and interpolation may leave.
    """
    additional = analysis.cdf_advantage - analysis.td
    expected = value(analysis.cmdp, analysis.policy, analysis.mean(analysis.cost + additional))
    return _at_most("CDF form", np.abs(analysis.quantile - expected).max(), 1e-5, analysis.constants)


def lipschitz(new: Analysis, old: Analysis) -> float:
    """C_u of Assumption 3, (15): |c~ of old - c~ of new| over max_s KL(old || new)."""
    difference = np.abs(old.additional_cost - new.additional_cost)[old.cmdp.transition > 0].max()
    return float(difference / kl(old.policy, new.policy))


def policy_independent_form(new: Analysis, old: Analysis) -> Check:
    """Theorem 3, (16): the quantile of the new policy from the old policy's additional cost."""
    _need_deterministic(new, "Theorem 3")
    constants = replace(new.constants, lipschitz=lipschitz(new, old))
    expected = value(new.cmdp, new.policy, new.mean(new.cost + old.additional_cost))
    right = (constants.slack + constants.lipschitz * kl(old.policy, new.policy)) / (1 - new.cmdp.discount)
    return _at_most("Theorem 3", np.abs(new.quantile - expected).max(), right, constants)


def improvement(new: Analysis, old: Analysis, multiplier: float) -> Check:
    """Theorem 4, (23): the Lagrangian's true change (left) is at least the surrogate's less its penalties (right)."""
    _need_deterministic(new, "Theorem 4")
    cmdp, gamma = new.cmdp, new.cmdp.discount
    constants = Constants(
        max(new.constants.bound, old.constants.bound),
        max(new.constants.epsilon_assumed, old.constants.epsilon_assumed),
        max(new.constants.epsilon_used, old.constants.epsilon_used),
        lipschitz(new, old),
    )
    new_value, old_value = (value(cmdp, each.policy, cmdp.reward) for each in (new, old))
    reward_advantage = cmdp.reward + gamma * cmdp.transition @ old_value - old_value[:, None]
    quantile_advantage = old.mean(old.advantage)

    def surrogate(policy: np.ndarray) -> float:
        gain = policy * (reward_advantage - multiplier * quantile_advantage)
        return float(occupancy(cmdp, old.policy) @ gain.sum(-1))

    start = cmdp.start
    left = new_value[start] - old_value[start] - multiplier * (new.quantile[start] - old.quantile[start])
    largest_reward = np.abs(reward_advantage).max()
    largest_cost = np.abs(old.advantage)[cmdp.transition > 0].max()
    first = (
        4 * gamma * (largest_reward + multiplier * largest_cost) / (1 - gamma) ** 2
        + multiplier * gamma * constants.bound / (1 - gamma) ** 2
        + multiplier * constants.lipschitz / (1 - gamma)
    )
    second = multiplier * (2 - gamma) / (1 - gamma) ** 2  # times R, which is part of the slack
    right = surrogate(new.policy) - surrogate(old.policy)
    right += -first * kl(old.policy, new.policy) - second * constants.slack
    return Check("Theorem 4", float(left), float(right), bool(left >= right - 1e-8 * (1 + abs(right))), constants)


def check_all(new: Analysis, old: Analysis, multiplier: float = 1.0) -> list[Check]:
    """Every result that the dynamics allow, for the new policy and, where a pair is asked for, against the old one."""
    checks = [weight_mean(new), td_relation(new), quantile_backup(new)]
    if new.cmdp.deterministic:
        checks += [distorted_value(new), policy_dependent_form(new)]
        checks += [policy_independent_form(new, old), improvement(new, old, multiplier)]
    return checks
