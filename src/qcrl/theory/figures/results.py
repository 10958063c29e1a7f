"""Both sides of the theorems on many problems, and where the assumptions behind them end."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from qcrl.theory.analysis import analyse
from qcrl.theory.cmdp import CMDP, moments, random_cmdp, random_policy, softmax, value
from qcrl.theory.density import density
from qcrl.theory.examples import spread_cmdp, staged
from qcrl.theory.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, markdown_table, panels
from qcrl.theory.theorems import Check, check_all, kl, lipschitz, td_relation, weight_mean

PROBLEMS = 100


def random_pair(seed: int) -> tuple[CMDP, np.ndarray, np.ndarray, float]:
    """A random problem with deterministic dynamics, two policies close to each other, and a level."""
    rng = np.random.default_rng(seed)
    cmdp = random_cmdp(
        rng,
        states=int(rng.integers(2, 6)),
        actions=int(rng.integers(2, 4)),
        discount=float(rng.uniform(0.9, 0.97)),
        width=float(rng.uniform(0.1, 0.4)),
    )
    old = random_policy(cmdp, rng)
    new = softmax(np.log(old) + 0.1 * rng.normal(size=old.shape))
    return cmdp, new, old, float(rng.choice([0.5, 0.6, 0.7, 0.8, 0.9]))


def checks_that_meet_the_assumptions(problems: int) -> tuple[list[list[Check]], int]:
    """All results on the first `problems` random pairs whose assumptions hold, and how many pairs were looked at."""
    found: list[list[Check]] = []
    seed = 0
    while len(found) < problems:
        cmdp, new, old, level = random_pair(seed)
        seed += 1
        # The cheap test first: a pair counts only where both policies meet the assumptions.
        first = analyse(cmdp, new, level)
        if not first.constants.met:
            continue
        second = analyse(cmdp, old, level)
        if second.constants.met:
            found.append(check_all(first, second))
    return found, seed


def draw_theorems() -> tuple[Figure, str]:
    found, looked_at = checks_that_meet_the_assumptions(PROBLEMS)
    figure, (left, right, third) = panels(3, height=4.0, width=4.2)
    names = [check.name for check in found[0]]
    rows = []
    for name, colour in zip(names[1:-1], (BLUE, GREY, ORANGE, GREEN, PURPLE)):
        pairs = np.array([[check.left, check.right] for row in found for check in row if check.name == name])
        held = sum(check.holds for row in found for check in row if check.name == name)
        rows.append([name, f"{held} of {len(pairs)}", *(f"{x:.3g}" for x in np.median(pairs, 0))])
        rows[-1].append(f"{np.median(pairs[:, 0] / pairs[:, 1]):.3f}")
        if name != "Corollary 1":  # the same numbers as Theorem 1
            left.loglog(pairs[:, 1], pairs[:, 0], ".", color=colour, label=name, alpha=0.7)
    ends = [1e-2, 1e2]
    left.loglog(ends, ends, color="black", linewidth=0.8)
    left.set(xlabel="bound", ylabel="what it bounds", title=f"{PROBLEMS} problems: the bounds hold")
    left.legend(frameon=False)

    last = [row[-1] for row in found]
    promised, true = np.array([check.right for check in last]), np.array([check.left for check in last])
    right.semilogx(-promised, true, ".", color=BLUE)
    right.set(
        xlabel="Theorem 4: the Lagrangian falls by at most",
        ylabel="its true change",
        title="Policy improvement, multiplier 1",
        xlim=(10, 1000),
    )
    right.xaxis.set_minor_formatter(NullFormatter())
    held = sum(check.holds for check in last)
    rows.append(["Theorem 4", f"{held} of {len(last)}", f"{np.median(true):.3g}", f"{np.median(promised):.3g}", "-"])
    rows.insert(0, ["E[mu] = 1", f"{sum(row[0].holds for row in found)} of {PROBLEMS}"])
    rows[0] += [f"{np.median([row[0].left for row in found]):.0e}", "0", "-"]
    constants = [row[1].constants for row in found]
    beyond = sum(each.epsilon_used > each.epsilon_assumed for each in constants)
    printed = sum(
        row[1].left > each.epsilon_assumed * each.bound / (1 - each.epsilon_assumed)
        for row, each in zip(found, constants)
    )
    note = (
        f"{looked_at} random problems were looked at to find these {PROBLEMS}. "
        f"In {beyond} of them step (b) of the proof needs a larger epsilon than Assumption 2 gives; "
        f"the inequality of Theorem 1 with the assumption's own epsilon failed in {printed}. "
        f"Theorem 4 promised an improvement in {(promised > 0).sum()} of {len(last)}."
    )
    table = markdown_table(["result", "holds", "left, median", "right, median", "left / right"], rows)
    return figure, f"{table}\n\n{note}\n\n{draw_explained(third)}"


def draw_explained(axes: Axes) -> str:
    """What Theorem 2's additional cost makes of the way from the mean to the quantile."""
    discounts, problems, level = (0.3, 0.5, 0.7, 0.9, 0.95, 0.98), 10, 0.9
    families: dict[str, tuple[Callable[..., CMDP], str]] = {
        "actions differ in mean cost": (random_cmdp, BLUE),
        "actions differ in spread": (spread_cmdp, ORANGE),
    }
    medians = []
    for name, (family, colour) in families.items():
        shares = np.zeros((len(discounts), problems))
        for row, seed in np.ndindex(*shares.shape):
            rng = np.random.default_rng(seed)
            cmdp = family(rng, discount=discounts[row])
            policy = random_policy(cmdp, rng)
            analysis = analyse(cmdp, policy, level)
            gap = analysis.quantile - moments(cmdp, policy)[0]
            shares[row, seed] = (value(cmdp, policy, analysis.mean(analysis.additional_cost)) / gap)[cmdp.start]
        axes.plot(discounts, np.median(shares, 1), "o-", color=colour, label=name)
        medians.append([name, *(f"{median:.2f}" for median in np.median(shares, 1))])
    axes.plot(discounts, 1 + np.array(discounts), "--", color=GREY, label="1 + discount")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(
        xlabel="discount",
        ylabel="additional cost / (quantile - mean)",
        title="Theorem 2 at u = 0.9: 1 would be exact",
        ylim=(0, 2.2),
    )
    axes.legend(frameon=False, loc="lower left")
    return markdown_table(["additional cost / (quantile - mean)", *(f"discount {x}" for x in discounts)], medians)


def draw_assumptions() -> tuple[Figure, str]:
    figure, (first, second, third) = panels(3, width=4.2)
    levels, problems, rows = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98), 10, []
    for discount, colour in ((0.9, GREY), (0.95, BLUE), (0.98, GREEN), (0.99, ORANGE)):
        met = np.zeros(len(levels))
        for seed in range(problems):
            rng = np.random.default_rng(seed)
            cmdp = random_cmdp(rng, discount=discount)
            policy = random_policy(cmdp, rng)
            known = density(cmdp, policy)
            met += [analyse(cmdp, policy, level, known).constants.met for level in levels]
        first.plot(levels, met / problems, "o-", color=colour, label=f"discount {discount}")
        rows.append([discount, *(f"{share:.1f}" for share in met / problems)])
    first.set(
        xlabel="level u", ylabel="share of problems", title="Assumption 2 holds (epsilon < 1/2)", ylim=(-0.05, 1.35)
    )
    first.legend(frameon=False, ncols=2, loc="upper center")

    widths = np.geomspace(0.02, 2, 12)
    policy = np.full((4, 3), 1 / 3)
    analyses = [analyse(staged(width), policy, 0.8) for width in widths]
    second.loglog(widths, [each.constants.epsilon for each in analyses], "o-", color=RED, label="epsilon measured")
    second.loglog(
        widths, [td_relation(each).left for each in analyses], "o-", color=BLUE, label="TD relation is off by"
    )
    second.loglog(
        widths, [weight_mean(each).left for each in analyses], "o-", color=GREY, label="E[mu] is off by (numerics)"
    )
    second.axhline(0.5, color=RED, linewidth=0.8, linestyle="--")
    second.set(xlabel="width of the cost noise", title="Towards atoms: assumption fails")
    second.legend(frameon=False)

    rng = np.random.default_rng(0)
    cmdp = random_cmdp(rng, discount=0.95)
    logits, direction = rng.normal(size=(2, *cmdp.cost.shape))
    base = analyse(cmdp, softmax(logits / 2), 0.9)
    others = [analyse(cmdp, softmax(logits / 2 + step * direction), 0.9) for step in np.geomspace(0.003, 1, 8)]
    distance = np.array([kl(other.policy, base.policy) for other in others])
    constant = np.array([lipschitz(base, other) for other in others])
    slope = np.polyfit(np.log(distance), np.log(constant), 1)[0]
    third.loglog(distance, constant, "o-", color=BLUE, label="measured")
    third.loglog(
        distance, constant[0] * (distance / distance[0]) ** -0.5, "--", color=GREY, label="KL to the power -1/2"
    )
    third.set(xlabel="max KL(old || new)", ylabel="C_u on the pair", title="Assumption 3: no finite constant")
    third.legend(frameon=False)
    table = markdown_table(["discount", *(f"u = {level}" for level in levels)], rows)
    return figure, table + f"\n\nMeasured slope of log C_u over log KL: {slope:.2f}."
