"""What it is worth to see the budget, and what of it Outage-PPO learns."""

import tempfile
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from qcrl.theory.budget import evaluate_policy, solve_budget, solve_timed
from qcrl.theory.cmdp import CMDP
from qcrl.theory.examples import COURIER_HORIZON, COURIER_LIMIT, MACHINE_HORIZON, MACHINE_LIMIT, courier, machine
from qcrl.theory.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, markdown_table, panels
from qcrl.theory.learning import (
    BUDGET_SEEDS,
    FRESH_SEEDS,
    tabulate,
    tabulate_budget,
    train_on_machine,
    train_with_budget,
)
from qcrl.theory.solver import evaluate_stationary, solve_stationary

Task = tuple[CMDP, int, int]
TASKS: dict[str, Task] = {
    "machine": (machine(), MACHINE_HORIZON, MACHINE_LIMIT),
    "courier": (courier(), COURIER_HORIZON, COURIER_LIMIT),
}
PROBABILITIES = (0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2)
ASKED = {0.1: GREEN, 0.02: RED}


def draw_budget() -> tuple[Figure, str]:
    figure, axes = panels(2)
    frontiers, learned = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for axis, (name, task) in zip(axes, TASKS.items()):
            frontiers += draw_frontiers(axis, name, task)
            for asked, colour in ASKED.items():
                found = learn(Path(folder) / f"{name}-{asked}", task, asked)
                learned[name, asked] = found
                axis.axvline(asked, color=colour, linestyle="--", linewidth=0.8)
                axis.plot(*found[:, :2].T, "o", color=colour, alpha=0.5, label=f"Outage-PPO, {asked} asked for")
            axis.set(xlabel="outage, exact", ylabel="expected return, exact", title=f"The {name}")
        draw_qcpo(axes[0], Path(folder) / "qcpo")
    axes[0].legend(frameon=False, fontsize=8)
    header = ["problem", "outage", "with the budget (LP)", "state and time", "of the LP", "stationary", "of the LP"]
    columns = ["seed", *(f"{name}, {asked}" for name, asked in learned)]
    rows = [
        [seed, *(f"{outage:.4f}, {100 * share:.1f}%" for outage, _, share in (each[i] for each in learned.values()))]
        for i, seed in enumerate(BUDGET_SEEDS)
    ]
    return figure, f"{markdown_table(header, frontiers)}\n\n{markdown_table(columns, rows)}"


def draw_frontiers(axis: Axes, name: str, task: Task) -> list[list[object]]:
    """The best returns with the budget in view, with the time alone, and with neither."""
    lines = {
        "with the budget (LP)": (BLUE, [solve_budget(*task, p).expected_return for p in PROBABILITIES]),
        "best with state and time": (ORANGE, [solve_timed(*task, p).expected_return for p in PROBABILITIES]),
        "best stationary": (GREY, [solve_stationary(*task, p, restarts=4).expected_return for p in PROBABILITIES]),
    }
    for label, (colour, returns) in lines.items():
        axis.plot(PROBABILITIES, returns, color=colour, label=label)
    rows: list[list[object]] = []
    for probability, best, timed, stationary in zip(PROBABILITIES, *(returns for _, returns in lines.values())):
        others = [cell for each in (timed, stationary) for cell in (f"{each:.2f}", f"{100 * each / best:.1f}%")]
        rows.append([name, probability, f"{best:.2f}", *others])
    return rows


def learn(out: Path, task: Task, asked: float) -> np.ndarray:
    """By seed: exact outage and return of what is learned, and its share of the optimum at that very outage."""
    run = train_with_budget(out, task, asked, BUDGET_SEEDS)
    found = []
    for seed in BUDGET_SEEDS:
        earned, outage = evaluate_policy(*task, tabulate_budget(run.policy_of(run.lane(seed)), *task))
        found.append((outage, earned, earned / solve_budget(*task, outage).expected_return))
    return np.array(found)


def draw_qcpo(axis: Axes, out: Path) -> None:
    """What QCPO learns where it sees the state alone."""
    run, cmdp = train_on_machine(out, FRESH_SEEDS), machine()
    tables = [tabulate(run.policy_of(run.lane(seed)), cmdp, 1000, np.random.default_rng(seed)) for seed in FRESH_SEEDS]
    found = [evaluate_stationary(cmdp, table, MACHINE_HORIZON, MACHINE_LIMIT) for table in tables]
    outages, returns = [each.outage for each in found], [each.expected_return for each in found]
    axis.plot(outages, returns, "s", color=PURPLE, alpha=0.5, label="QCPO, state alone, 0.1 asked for")
