"""Rate functions beside exact and simulated tails, and how far fitted tails can be trusted."""

import numpy as np
from matplotlib.figure import Figure

from qcrl.theory.cmdp import CMDP, simulate
from qcrl.theory.examples import machine
from qcrl.theory.figures.style import BLUE, GREEN, GREY, ORANGE, RED, markdown_table, panels
from qcrl.theory.grid import bracket
from qcrl.theory.large_deviations import LEVELS, fit_tails, rate_function, state_action_chain

POLICY = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])


def draw_rate() -> tuple[Figure, str]:
    cmdp = machine()
    matrix, values = state_action_chain(cmdp, POLICY)
    means = np.linspace(0.2, 0.9, 15)
    rate = np.array([rate_function(matrix, values, mean) for mean in means])
    figure, (left, right) = panels(2)
    left.plot(means, rate, color="black", label="rate function")
    rows, samples = [], 200_000
    for steps, colour in ((25, GREEN), (100, BLUE), (400, ORANGE)):
        exact = bracket(cmdp, POLICY, horizon=steps, spacing=1.0)
        limits = np.ceil(steps * means - 1e-9) - 1
        tail = np.array([exact.outage(limit)[cmdp.start, 0] for limit in limits])
        left.plot(means, -np.log(tail) / steps, "o", color=colour, markersize=4, label=f"exact, {steps} steps")
        if steps <= 100:
            total = simulate(cmdp, POLICY, samples, np.random.default_rng(steps), horizon=steps)
            counts = np.array([(total > limit).sum() for limit in limits])
            seen = counts >= 10
            left.plot(
                means[seen],
                -np.log(counts[seen] / samples) / steps,
                "x",
                color=colour,
                label=f"simulated, {steps} steps",
            )
        right.plot(means, -np.log(tail) / steps - rate, "o-", color=colour, label=f"{steps} steps")
        for index in (2, 6):
            rows.append(
                [
                    steps,
                    f"{means[index]:.2f}",
                    f"{tail[index]:.2e}",
                    f"{-np.log(tail[index]) / steps:.4f}",
                    f"{rate[index]:.4f}",
                ]
            )
    left.set(
        xlabel="mean cost per step z", ylabel="-log Pr(mean cost >= z) / n", title="Large deviations of the machine"
    )
    left.legend(frameon=False, fontsize=8)
    right.axhline(0, color="black", linewidth=0.8)
    right.set(xlabel="mean cost per step z", ylabel="exact - rate function", title="What the rate function leaves out")
    right.legend(frameon=False)
    return figure, markdown_table(["steps n", "z", "Pr(mean >= z)", "-log Pr / n", "rate I(z)"], rows)


def tail_problems() -> dict[str, tuple[CMDP, np.ndarray, int]]:
    """Cost laws from harmless to nasty: name to problem, policy, horizon. Costs are whole numbers."""
    rare = CMDP(np.ones((1, 2, 1)), np.zeros((1, 2)), np.array([[1.0, 60.0]]), np.zeros((1, 2)), 1.0)
    even = rare.replace(cost=np.array([[0.0, 1.0]]))
    return {
        "many small costs": (even, np.array([[0.7, 0.3]]), 100),
        "machine (bursts)": (machine(), POLICY, 100),
        "rare large costs": (rare, np.array([[0.98, 0.02]]), 100),
    }


def draw_tails() -> tuple[Figure, str]:
    problems = tail_problems()
    figure, axes = panels(len(problems), width=4.2)
    rows = []
    for axis, (name, (cmdp, policy, horizon)) in zip(axes, problems.items()):
        exact = bracket(cmdp, policy, horizon=horizon, spacing=1.0)
        mass = exact.low[cmdp.start]
        points = np.arange(len(mass))
        mean = float(mass @ points)
        deviation = float(np.sqrt(mass @ (points - mean) ** 2))
        fitted = fit_tails(np.array([exact.quantile(level)[cmdp.start, 0] for level in LEVELS]), mean, deviation)
        survival = mass[::-1].cumsum()[::-1] - mass  # Pr(X > x)
        shown = (survival < 0.5) & (survival > 1e-9)
        axis.semilogy(points[shown], survival[shown], color="black", label="exact")
        axis.semilogy(points[shown], fitted.weibull_outage(points[shown]), color=BLUE, label="Weibull, 0.70 to 0.98")
        axis.semilogy(points[shown], fitted.gaussian_outage(points[shown]), "--", color=RED, label="Gaussian, moments")
        axis.axhspan(0.02, 0.3, color=GREY, alpha=0.15, linewidth=0)
        axis.set(xlabel="episode cost x", ylabel="Pr(cost > x)", title=name, ylim=(1e-9, 1))
        for exceedance in (1e-1, 1e-2, 1e-4, 1e-6):
            limit = np.argmax(survival <= exceedance)
            truth = survival[limit]
            rows.append(
                [
                    name,
                    f"{limit:.0f}",
                    f"{truth:.1e}",
                    f"{fitted.weibull_outage(limit) / truth:.2g}",
                    f"{fitted.gaussian_outage(limit) / truth:.2g}",
                ]
            )
    axes[0].legend(frameon=False)
    header = ["cost law", "limit", "Pr(cost > limit)", "Weibull / exact", "Gaussian / exact"]
    return figure, markdown_table(header, rows)
