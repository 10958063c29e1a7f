"""What QCPO learns on the machine, beside the best that a stationary policy can do."""

import csv
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from qcrl.theory.examples import MACHINE_HORIZON, MACHINE_LIMIT, machine
from qcrl.theory.figures.style import BLUE, GREY, markdown_table, panels
from qcrl.theory.learning import FRESH_SEEDS, PROBABILITY, tabulate, train_on_machine
from qcrl.theory.solver import evaluate_stationary, solve_stationary


def draw_learned() -> tuple[Figure, str]:
    task = (machine(), MACHINE_HORIZON, MACHINE_LIMIT)
    probabilities = (0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3)
    frontier = [solve_stationary(*task, probability, restarts=4).expected_return for probability in probabilities]
    best = frontier[probabilities.index(PROBABILITY)]
    figure, (left, right) = panels(2)
    left.plot(probabilities, frontier, color=GREY, label="best stationary policy")
    left.axvline(PROBABILITY, color=GREY, linestyle="--", linewidth=0.8)
    right.axhline(PROBABILITY, color=GREY, linestyle="--", linewidth=0.8)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        run = train_on_machine(Path(folder) / "machine", FRESH_SEEDS)
        with (run.path / "metrics.csv").open() as file:
            metrics = list(csv.DictReader(file))
        for seed in FRESH_SEEDS:
            policy = tabulate(run.policy_of(run.lane(seed)), task[0], 1000, np.random.default_rng(seed))
            found = evaluate_stationary(task[0], policy, *task[1:])
            label = f"QCPO, {len(FRESH_SEEDS)} seeds" if seed == FRESH_SEEDS[0] else None
            left.plot(found.outage, found.expected_return, "o", color=BLUE, alpha=0.5, label=label)
            own = [row for row in metrics if int(row["seed"]) == seed]
            right.plot(
                [float(row["env_steps"]) / 1000 for row in own],
                [float(row["outage"]) for row in own],
                color=BLUE,
                alpha=0.5,
                linewidth=0.8,
            )
            rows.append(
                [
                    seed,
                    f"{found.outage:.3f}",
                    f"{found.expected_return:.2f}",
                    f"{100 * found.expected_return / best:.1f}%",
                    ", ".join(f"{chance:.2f}" for chance in policy[:, 1]),
                ]
            )
    left.set(xlabel="outage, exact", ylabel="expected return, exact", title="Learned on the machine, 0.1 asked for")
    left.legend(frameon=False)
    right.set(xlabel="steps, thousands", ylabel="outage of the last 100 episodes", title="Training", ylim=(0, None))
    header = ["seed", "outage", "return", f"of the best at {PROBABILITY}", "probability of hard: fine, worn, broken"]
    return figure, markdown_table(header, rows)
