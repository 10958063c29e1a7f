"""Exact distributions beside simulation, and what the weight mu does to a policy."""

import numpy as np
from matplotlib.figure import Figure

from qcrl.theory.analysis import analyse
from qcrl.theory.cmdp import CMDP, random_cmdp, random_policy, simulate
from qcrl.theory.density import density
from qcrl.theory.figures.style import BLUE, GREEN, GREY, ORANGE, markdown_table, panels
from qcrl.theory.grid import bracket

SAMPLES = 1_000_000
LEVEL = 0.9


def example() -> tuple[CMDP, np.ndarray]:
    """A random problem with deterministic dynamics and a density with several humps."""
    rng = np.random.default_rng(5)
    cmdp = random_cmdp(rng, states=4, actions=3, discount=0.8, width=0.25)
    return cmdp, random_policy(cmdp, rng)


def draw_distribution() -> tuple[Figure, str]:
    cmdp, policy = example()
    exact = density(cmdp, policy)[cmdp.start]
    enclosed = bracket(cmdp, policy, points=2**14)
    sampled = np.sort(simulate(cmdp, policy, SAMPLES, np.random.default_rng(0), tolerance=1e-5))

    figure, (left, right) = panels(2)
    shown = np.linspace(sampled[0], sampled[-1], 600)
    left.hist(sampled, bins=150, density=True, color=GREY, alpha=0.4, label=f"{SAMPLES:,} samples")
    left.plot(shown, exact.pdf(shown), color=BLUE, label="exact density")
    quantile = exact.quantile(LEVEL)
    left.axvline(quantile, color=ORANGE, label=f"{LEVEL} quantile")
    left.set(xlabel="discounted cost-to-go", ylabel="density", title="Start state")
    left.legend(frameon=False)

    empirical = np.arange(1, SAMPLES + 1) / SAMPLES
    thinned = slice(None, None, 500)
    band = 1.95 / np.sqrt(SAMPLES)  # Kolmogorov's bound, exceeded once in a thousand
    right.fill_between(sampled[thinned], -band, band, color=GREY, alpha=0.25, label="Kolmogorov band, 99.9%")
    right.plot(sampled[thinned], (exact.cdf(sampled) - empirical)[thinned], color=BLUE, label="exact - samples")
    right.set(xlabel="discounted cost-to-go", ylabel="difference of CDFs", title="Against simulation")
    right.legend(frameon=False, loc="lower right")

    rows = []
    for level in (0.5, 0.9, 0.98):
        low, high = enclosed.quantile(level)[cmdp.start]
        rows.append(
            [
                level,
                f"{exact.quantile(level):.4f}",
                f"[{low:.4f}, {high:.4f}]",
                f"{np.quantile(sampled, level):.4f}",
                f"{exact.cvar(level):.4f}",
                f"{sampled[int(level * SAMPLES) :].mean():.4f}",
            ]
        )
    header = ["level", "quantile", "grid bracket", "quantile, samples", "CVaR", "CVaR, samples"]
    largest = np.abs(exact.cdf(sampled) - empirical).max()
    note = (
        f"Largest difference between exact and sampled CDF: {largest:.1e}, "
        f"where {band:.1e} is exceeded once in a thousand. "
        f"Guaranteed width of the bracket: at most {enclosed.error_bound:.4f}. "
        f"Characteristic function at the highest frequency: {exact.truncation:.0e}."
    )
    return figure, markdown_table(header, rows) + "\n\n" + note


def draw_weight() -> tuple[Figure, str]:
    cmdp, policy = example()
    analysis = analyse(cmdp, policy, LEVEL)
    state = cmdp.start
    following = cmdp.transition[state].argmax(-1)
    figure, (left, right) = panels(2)
    spread = np.linspace(0, analysis.distribution[state].quantile(0.9999), 500)
    for action, colour in enumerate((BLUE, ORANGE, GREEN)):
        # Density of cost plus discounted rest, given the action, without the noise of the first step for clarity.
        rest = (spread - cmdp.mean_cost[state, action]) / cmdp.discount
        density_value = analysis.distribution[following[action]].pdf(rest) / cmdp.discount
        left.plot(spread, density_value, color=colour, label=f"action {action}")
    left.axvline(analysis.quantile[state], color=GREY, linestyle="--", label=f"{LEVEL} quantile of the state")
    left.set(
        xlabel="cost-to-go from the start state", ylabel="density given the action", title="Which action leads there?"
    )
    left.legend(frameon=False)

    places = np.arange(cmdp.actions)
    right.bar(places - 0.2, policy[state], 0.4, color=GREY, label="policy")
    right.bar(places + 0.2, analysis.distorted_policy[state], 0.4, color=ORANGE, label="distorted policy")
    right.set(xlabel="action", ylabel="probability", title="Lemma 1 at the start state", xticks=places)
    right.legend(frameon=False)
    weight = analysis.mean(analysis.weight)[state]
    rows = [
        [a, f"{policy[state, a]:.3f}", f"{weight[a]:.3f}", f"{analysis.distorted_policy[state, a]:.3f}"] for a in places
    ]
    total = float(analysis.distorted_policy[state].sum())
    return figure, markdown_table(["action", "policy", "mean weight mu", "distorted policy"], rows) + (
        f"\n\nThe distorted policy sums to 1 within {abs(total - 1):.0e}."
    )
