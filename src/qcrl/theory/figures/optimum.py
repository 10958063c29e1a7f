"""The exact optimum with history, and the best policy without, over the outage probability that is asked for."""

import numpy as np
from matplotlib.figure import Figure

from qcrl.theory.examples import MACHINE_HORIZON, MACHINE_LIMIT, machine
from qcrl.theory.figures.style import BLUE, GREY, ORANGE, RED, SKY, markdown_table, panels
from qcrl.theory.solver import evaluate_stationary, solve, solve_stationary

PROBABILITIES = (0.016, 0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6)


def draw_optimum() -> tuple[Figure, str]:
    cmdp = machine()
    task = (cmdp, MACHINE_HORIZON, MACHINE_LIMIT)
    best = [solve(*task, probability) for probability in PROBABILITIES]
    stationary = [solve_stationary(*task, probability, restarts=6) for probability in PROBABILITIES]
    figure, (left, right) = panels(2)
    gentle = evaluate_stationary(cmdp, np.tile([1.0, 0.0], (3, 1)), MACHINE_HORIZON, MACHINE_LIMIT)
    left.plot(gentle.outage, gentle.expected_return, "s", color=GREY, label="always gentle")
    left.plot(PROBABILITIES, [each.expected_return for each in best], "o-", color=BLUE, label="with history (LP)")
    left.plot(
        PROBABILITIES, [each.expected_return for each in stationary], "o-", color=ORANGE, label="best stationary policy"
    )
    left.set(xlabel="outage probability asked for", ylabel="expected return", title="The machine")
    left.legend(frameon=False)

    policy = solve(*task, 0.1).policy
    for spent, colour in zip(range(MACHINE_LIMIT + 2), (BLUE, SKY, ORANGE, RED)):
        label = f"{spent} broken steps so far" if spent <= MACHINE_LIMIT else "more than the limit"
        right.plot(policy[:, 1, spent, 1], "o-", color=colour, label=label, markersize=3)
    right.set(
        xlabel="time",
        ylabel="probability of running hard",
        title="Optimum at 0.1, machine worn",
        xticks=range(0, 20, 5),
    )
    right.legend(frameon=False, fontsize=8, loc="center left")
    rows = [
        [
            probability,
            f"{with_history.expected_return:.2f}",
            f"{without.expected_return:.2f}",
            f"{100 * (1 - without.expected_return / with_history.expected_return):.1f}%",
            f"{without.outage:.3f}",
            ", ".join(f"{chance:.2f}" for chance in without.policy[:, 1]),
        ]
        for probability, with_history, without in zip(PROBABILITIES, best, stationary)
    ]
    header = [
        "outage asked for",
        "optimum",
        "best stationary",
        "gap",
        "its outage",
        "its probability of hard: fine, worn, broken",
    ]
    return figure, markdown_table(header, rows)
