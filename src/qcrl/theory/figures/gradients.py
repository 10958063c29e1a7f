"""How close the formulas for the quantile's gradient come to the truth."""

import numpy as np
from matplotlib.figure import Figure

from qcrl.theory.cmdp import CMDP, random_cmdp
from qcrl.theory.examples import spread_cmdp
from qcrl.theory.figures.style import BLUE, GREEN, GREY, ORANGE, RED, markdown_table, panels
from qcrl.theory.gradient import FORMULAS, compare

LEVELS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
COLOURS = dict(zip(FORMULAS, (GREEN, RED, BLUE, ORANGE, GREY)))
PROBLEMS = 20
FAMILIES = {
    "actions differ in mean cost": lambda rng: random_cmdp(rng, discount=0.95),
    "actions differ in spread": lambda rng: spread_cmdp(rng, discount=0.95),
}


def measure(family) -> np.ndarray:
    """Cosine and length ratio with the axes (problem, level, formula, 2)."""
    rows = []
    for seed in range(PROBLEMS):
        rng = np.random.default_rng(seed)
        cmdp: CMDP = family(rng)
        found = compare(cmdp, 0.5 * rng.normal(size=cmdp.cost.shape), LEVELS)
        rows.append([[row[name] for name in FORMULAS] for row in found])
    return np.array(rows)


def draw_gradient() -> tuple[Figure, str]:
    figure, axes = panels(3, width=4.2)
    rows = []
    for axis, (title, family) in zip(axes, FAMILIES.items()):
        measured = measure(family)
        low, median = np.quantile(measured[..., 0], [0.1, 0.5], axis=0)
        angle = np.degrees(np.arccos(np.clip(measured[..., 0], -1, 1)))
        for column, name in enumerate(FORMULAS):
            axis.plot(LEVELS, np.median(angle[..., column], 0), "o-", color=COLOURS[name], label=name)
            axis.plot(LEVELS, np.quantile(angle[..., column], 0.9, 0), ":", color=COLOURS[name], linewidth=1)
            length = np.median(measured[:, :, column, 1], axis=0)
            for index in (0, 3, 5):
                if index == 0:
                    rows.append([title, name])
                rows[-1].append(f"{median[index, column]:.2f} ({low[index, column]:.2f}), {length[index]:.2f}")
        axis.set(xlabel="level u", ylabel="angle to the exact gradient, degrees", title=title, ylim=(0, 90))
    axes[0].legend(frameon=False)
    for column, name in enumerate(FORMULAS):
        length = np.median(measured[:, :, column, 1], axis=0)
        axes[2].semilogy(LEVELS, length, "o-", color=COLOURS[name], label=name)
    axes[2].set(xlabel="level u", ylabel="length / length of the exact gradient", title="actions differ in spread")
    header = ["family", "formula", *(f"u = {LEVELS[index]}" for index in (0, 3, 5))]
    return figure, markdown_table(header, rows) + "\n\nMedian cosine (10th percentile), median length ratio."
