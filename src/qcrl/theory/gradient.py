"""The gradient of the quantile over softmax logits: exact by finite differences, and five formulas beside it.

Exactly, an action at step t shifts the CDF at what is still to come: y_0 = q(s_0), y_{t+1} = (y_t - c_t) / discount.
All the formulas take y_t to be q(s_t) and visit states under the policy; they differ in the advantage of an action.

- `cdf`: (u - F_{X(s')}((q(s) - c) / discount)) / p_{X(s)}(q(s)), which is exact at the first step.
- `implemented`: mu (c + discount q(s') - q(s)), the first-order expansion of `cdf`; the policy loss before smoothing.
- `smoothed`: the same with 1 + clip(log mu, +-0.5) for mu: the policy loss that QCPO uses.
- `theorem`: mu (c + discount q(s')) - q(s), which is A_u of Theorem 4. It has the same mean under the policy as
  `implemented`, but differs by (mu - 1) q(s) from action to action, and that does not drop out of a gradient.
- `naive`: c + discount q(s') - q(s), without additional cost.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from qcrl.theory.analysis import Analysis, analyse
from qcrl.theory.cmdp import CMDP, occupancy, softmax
from qcrl.theory.density import densities, density

FORMULAS = ("cdf", "implemented", "smoothed", "theorem", "naive")


def exact_gradients(
    cmdp: CMDP, logits: Float[np.ndarray, "S A"], levels: Sequence[float], step: float = 1e-4
) -> Float[np.ndarray, "L S A"]:
    """Central differences of the start state's quantile at each level; errors are of size step**2."""
    shifts = step * np.eye(logits.size).reshape(-1, *logits.shape)
    policies = softmax(np.concatenate([logits + shifts, logits - shifts]))
    starts = [states[cmdp.start] for states in densities(cmdp, policies)]
    quantiles = np.array([[start.quantile(level) for start in starts] for level in levels])
    up, down = np.moveaxis(quantiles.reshape(len(levels), 2, *logits.shape), 1, 0)
    return (up - down) / (2 * step)


def policy_gradient(
    policy: Float[np.ndarray, "S A"], visits: Float[np.ndarray, " S"], advantage: Float[np.ndarray, "S A"]
) -> Float[np.ndarray, "S A"]:
    """sum_s rho(s) sum_a grad pi(a|s) A(s, a) for softmax logits."""
    baseline = (policy * advantage).sum(-1, keepdims=True)
    return visits[:, None] * policy * (advantage - baseline)


def formulas(analysis: Analysis, clip: float = 0.5) -> dict[str, Float[np.ndarray, "S A"]]:
    """Every approximation of the gradient by its name."""
    weight, td = analysis.weight, analysis.td
    advantages = {
        "cdf": analysis.cdf_advantage,
        "implemented": weight * td,
        "smoothed": (1 + np.clip(np.log(np.maximum(weight, 1e-300)), -clip, clip)) * td,
        "theorem": analysis.advantage,
        "naive": td,
    }
    visits = occupancy(analysis.cmdp, analysis.policy)
    return {name: policy_gradient(analysis.policy, visits, analysis.mean(each)) for name, each in advantages.items()}


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    """Of the angle between two gradients; 0 where one of them vanishes."""
    norms = np.linalg.norm(first) * np.linalg.norm(second)
    return float((first * second).sum() / norms) if norms > 0 else 0.0


def compare(
    cmdp: CMDP, logits: Float[np.ndarray, "S A"], levels: Sequence[float]
) -> list[dict[str, tuple[float, float]]]:
    """At each level, for every formula: the cosine with the exact gradient, and the ratio of their lengths."""
    rows = []
    distribution = density(cmdp, softmax(logits))
    for level, exact in zip(levels, exact_gradients(cmdp, logits, levels)):
        length = np.linalg.norm(exact)
        approximate = formulas(analyse(cmdp, softmax(logits), level, distribution))
        rows.append(
            {name: (cosine(each, exact), float(np.linalg.norm(each) / length)) for name, each in approximate.items()}
        )
    return rows
