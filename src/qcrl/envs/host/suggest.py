"""What the episodes of random actions say to somebody who wants to train: limits to begin with, and the command."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from qcrl.envs.host.check import Report

LEVELS = (0.5, 0.75, 0.9)
NAMED = 8
"""How many of the things that are ignored are named."""


def suggestions(report: Report) -> list[str]:
    """What is not looked at, and what the costs of random actions say about limits."""
    lines = []
    if report.ignored:
        more = len(report.ignored) - NAMED
        named = ", ".join(report.ignored[:NAMED]) + (f" and {more} more" if more > 0 else "")
        lines = [f"Not looked at: {named}. To take a cost from one of these, say so with --cost."]
    if not report.costs.size:
        return [*lines, "No episode with costs has ended: no limit can be suggested."]
    several = len(report.every) > 1
    named_costs = {f"Cost {name}": costs for name, costs in report.every.items()} if several else {"Cost": report.costs}
    return [*lines, *(line for name, costs in named_costs.items() for line in _distribution(name, costs))]


def _distribution(name: str, costs: Float[np.ndarray, " n"]) -> list[str]:
    values = np.quantile(costs, LEVELS)
    shown = ", ".join(f"{100 * level:.0f}% {value:.4g}" for level, value in zip(LEVELS, values))
    lines = [
        f"{name} of {costs.size} episodes with random actions: mean {costs.mean():.4g}, quantiles {shown}, "
        f"highest {costs.max():.4g}."
    ]
    if not costs.any():
        return [*lines, "Random actions cost nothing, so they say nothing about limits: take one from what costs mean."]
    if _all_or_nothing(costs):
        only = f"Every episode costs nothing or {costs.max():.4g}: with a limit of 0 the outage is the share of "
        return [*lines, f"{only}episodes that cost anything."]
    at = [f"{value:.4g} (exceeded by {np.mean(costs > value):.2f} of them)" for value in _limits(costs)]
    return [
        *lines,
        f"Limits to begin with: {', '.join(at)}. A trained policy may cost more or less than random actions.",
    ]


def limits(report: Report) -> Float[np.ndarray, " limit"]:
    """Limits to begin with, of the first cost; none where random actions cost nothing."""
    return _limits(report.costs)


def command(report: Report, env: str, cost: Sequence[str] = ()) -> str:
    """The command to train with, or what comes before it."""
    given = "".join(f" --cost {each}" for each in cost)
    if not report.passed:
        return f"Mend what is marked NO, then look again: qcrl check-env {env}{given}"
    found = limits(report)
    limit = f"{found[0]:.4g}" if found.size else "D"
    first = next(iter(report.every), "cost")
    asked = f"--limit {limit} --outage 0.1"
    if first != "cost":
        asked = f"--constraint outage:cost={first},limit={limit},probability=0.1"
    return f"To train: qcrl train {env}{given} {asked}" + ("" if found.size else ", with what may be spent as D")


def _limits(costs: Float[np.ndarray, " n"]) -> Float[np.ndarray, " limit"]:
    """Quantiles of what random actions cost that some exceed, each once; whole numbers where costs are."""
    if not costs.size or not costs.any():
        return np.zeros(0)
    if _all_or_nothing(costs):
        return np.zeros(1)
    rounded = np.floor if np.array_equal(costs, np.round(costs)) else np.asarray
    values = np.unique(rounded(np.quantile(costs, LEVELS)))
    binding = values[values < costs.max()]
    return binding if binding.size else rounded(np.array([costs.max() / 2]))


def _all_or_nothing(costs: Float[np.ndarray, " n"]) -> bool:
    """Whether some episodes cost nothing, and all others the same; one alone says nothing."""
    costly = costs[costs > 0]
    return 1 < costly.size < costs.size and np.unique(costly).size == 1
