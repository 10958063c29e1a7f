"""The paper's claims as statements about outages, costs and returns over seeds, each with a verdict and its evidence.

A mean over seeds is judged by its Student interval. A claim makes several comparisons: together they hold at 95%, so
each one alone is stricter (Bonferroni).
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy import stats

from qcrl.reproduce.results import Found, only

CONFIDENCE = 0.95
PRECISION = {"outage": 0.1, "episode_cost": 5.0}
"""An interval that reaches further than this from its mean agrees with anything, and decides nothing."""


class Claim(NamedTuple):
    """A sentence of the paper, in our words, and what became of it here."""

    text: str
    verdict: str
    evidence: str


class Comparison(NamedTuple):
    """One of the comparisons behind a claim."""

    holds: bool | None
    """None where the seeds scatter too much to tell."""
    evidence: str


def judge(text: str, comparisons: Sequence[Comparison], expected: int) -> Claim:
    """The verdict on a claim of which `expected` comparisons should have been made."""
    if not comparisons:
        return Claim(text, "cannot be told", "None of the runs that it is about is there")
    decided = [each for each in comparisons if each.holds is not None]
    held = sum(bool(each.holds) for each in decided)
    verdict = "holds" if held == len(decided) else "does not hold" if held == 0 else "holds in part"
    absent, noisy = expected - len(comparisons), len(comparisons) - len(decided)
    notes = [f"{absent} of {expected} comparisons lack their runs"] if absent > 0 else []
    notes += [f"{noisy} scatter too much over seeds to tell"] if noisy else []
    if (held and 2 * len(decided) < expected) or not decided:
        verdict = "cannot be told"
    elif notes:
        verdict += " as far as can be told"
    counted = f"{held} of {len(comparisons)}: " if len(comparisons) > 1 else ""
    return Claim(text, verdict, counted + "; ".join([*(each.evidence for each in comparisons), *notes]))


def interval(values: np.ndarray, comparisons: int = 1) -> tuple[float, float]:
    """Student's interval of the mean over seeds; without bounds from a single seed."""
    if len(values) < 2:
        return -math.inf, math.inf
    reach = stats.t.ppf(1 - (1 - CONFIDENCE) / 2 / comparisons, len(values) - 1) * np.std(values, ddof=1)
    reach /= math.sqrt(len(values))
    return float(np.mean(values) - reach), float(np.mean(values) + reach)


def at(found: Sequence[Found], name: str, target: float | None = None) -> list[Comparison]:
    """The target, a setting's own probability unless given, lies within the interval of the mean over seeds."""
    targets = [each.probability if target is None else target for each in found]
    return [_within(each, name, value, value, len(found)) for each, value in zip(found, targets)]


def between(found: Sequence[Found], name: str, low: float, high: float) -> list[Comparison]:
    """The interval of the mean over seeds meets the range."""
    return [_within(each, name, low, high, len(found)) for each in found]


def not_above(found: Sequence[Found]) -> list[Comparison]:
    """The mean outage over seeds is not shown to lie above the probability."""
    return [_within(each, "outage", -math.inf, each.probability, len(found)) for each in found]


def above(found: Sequence[Found]) -> list[Comparison]:
    """The mean outage over seeds is shown to lie above the probability."""
    return [Comparison(None if holds is None else not holds, text) for holds, text in not_above(found)]


def _within(each: Found, name: str, low: float, high: float, comparisons: int) -> Comparison:
    values = each.per_seed(name)
    bottom, top = interval(values, comparisons)
    digits = 3 if name == "outage" else 1
    bounds = "one seed" if math.isinf(top) else f"{bottom:.{digits}f} to {top:.{digits}f}"
    text = f"{_short(each)} {np.mean(values):.{digits}f} ({bounds})"
    inside = bottom <= high and top >= low
    return Comparison(None if inside and (top - bottom) / 2 > PRECISION[name] else inside, text)


def higher_return(better: Found | None, others: Sequence[Found], comparisons: int) -> list[Comparison]:
    """The mean return is higher than that of all others, by Welch's test against the best of them."""
    if better is None or not others:
        return []
    best = max(others, key=lambda each: float(np.mean(each.per_seed("episode_return"))))
    own, other = better.per_seed("episode_return"), best.per_seed("episode_return")
    chance = (
        stats.ttest_ind(own, other, equal_var=False, alternative="greater").pvalue
        if min(len(own), len(other)) > 1
        else 1
    )
    clear = chance <= (1 - CONFIDENCE) / comparisons
    ahead = np.mean(own) > np.mean(other)
    doubt = "" if clear or not ahead else ", within the seeds' noise"
    text = f"{_short(better)} {np.mean(own):.1f} against {_short(best, environment=False)} {np.mean(other):.1f}{doubt}"
    return [Comparison(bool(clear and ahead), text)]


def _short(each: Found, environment: bool = True) -> str:
    place = f"{each.environment.removesuffix('Env-v0')} " if environment else ""
    algorithm = each.config["algorithm"]["name"]
    asked = "" if algorithm == "ppo_lag" else f" at {each.probability:g}"
    return f"{place}{algorithm}{asked}" + ("" if each.fresh else ", in training,")


def qcpo_settles(found: Sequence[Found], expected: int, text: str) -> Claim:
    return judge(text, at(only(found, label="qcpo-authors"), "outage"), expected)


def settling_order(found: Sequence[Found], environments: Sequence[str]) -> Claim:
    """Steps until the mean outage over seeds first comes within a quarter above its target."""
    text = "The smaller the probability, the longer the outage takes to come down to it."
    comparisons = []
    for environment in environments:
        chosen = sorted(only(found, environment=environment, label="qcpo-authors"), key=lambda each: -each.probability)
        if len(chosen) < 2:
            continue
        steps = [_steps_to_settle(each) for each in chosen]
        pairs = [
            f"{each.probability:g} {'never' if math.isinf(n) else f'{n / 1e6:.2g}M'}" for each, n in zip(chosen, steps)
        ]
        in_order = all(first <= second for first, second in pairwise(steps))
        comparisons.append(Comparison(in_order, f"{environment.removesuffix('Env-v0')} {', '.join(pairs)} steps"))
    return judge(text, comparisons, len(environments))


def _steps_to_settle(each: Found) -> float:
    steps = np.unique(each.training["env_steps"])
    mean = np.array([np.nanmean(each.training["outage"][each.training["env_steps"] == step]) for step in steps])
    reached = np.flatnonzero(mean <= 1.25 * each.probability)
    return float(steps[reached[0]]) if len(reached) else math.inf


def markdown(claims: Sequence[Claim]) -> str:
    return "\n".join(f"- **{claim.text}** {claim.verdict.capitalize()}. {claim.evidence}." for claim in claims)
