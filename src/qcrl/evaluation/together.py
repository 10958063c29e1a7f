"""Constraints that hold together, certified together: each at the full confidence, all on the same episodes.

To certify all is to reject, for each, that it is broken. If one is broken, the certificate is false only where that one
test errs, so that the error of the whole is the error of one (intersection-union), and nothing is split. To show that
some constraint is broken, any of them may err, and the error is shared.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from qcrl import stats
from qcrl.constraints import Constraint, Outage, exceeds, outages, promising
from qcrl.envs.base import Described
from qcrl.errors import UserError
from qcrl.evaluation.evaluate import Player, results_of
from qcrl.evaluation.plan import Plan
from qcrl.evaluation.summary import Results
from qcrl.kinds import Json
from qcrl.runs.lane import Lane

Costs = Float[np.ndarray, " episodes"]
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?")


def first_outage(lane: Lane) -> Outage:
    """The outage constraint that the plan is made for."""
    found = outages(lane.constraints)
    if not found:
        raise UserError(
            f"{lane} has no outage constraint, and only outages are planned for; certify a run that has one"
        )
    return found[0]


def episodes_for(promises: Sequence[float], error: float, power: float, share: float) -> int:
    """As many as the outage constraint needs that needs most, each expected at this share of its promise."""
    return max(stats.episodes_needed(promise, 1 - error, share * promise, power) for promise in promises)


def promised(lane: Lane, promise: float | Sequence[float] | None) -> list[float]:
    """What is promised of each outage constraint: what it was trained for unless given, one number for each."""
    trained = [each.probability for each in outages(lane.constraints)]
    if promise is None:
        return [float(each) for each in trained]
    given = list(promise) if isinstance(promise, Sequence) else [promise]
    if len(given) != len(trained):
        raise UserError(
            f"{len(given)} promises are given, but {lane} has {len(trained)} outage constraints that hold together; "
            "give one promise for each, in their order"
        )
    return [Outage(1.0, float(each)).probability for each in given]


def counted(lane: Lane, results: Results) -> int:
    """Outages that count for the choice of a policy: where several constraints hold together, those of the worst."""
    if len(lane.constraints) == 1:
        return int(exceeds(results.costs, lane.limit).sum())
    return min(len(results.costs), round(worst(lane.constraints, results.every) * len(results.costs)))


def worst(constraints: Sequence[Constraint], every: Mapping[str, Costs]) -> float:
    """The first outage that counts for the choice of a policy: its probability, times how far the worst is used up."""
    first = next((each.probability for each in outages(constraints)), 1.0)
    used = [each.measure(every[each.cost]) / max(each.bound, 1e-12) for each in constraints]
    return float(first * max(used))


def largest_costs(env: Described) -> dict[str, float]:
    """The most that an episode can cost, by name, as far as the environment says so."""
    return dict(zip(env.costs, getattr(env, "most_costs", ())))


def judge(
    constraints: Sequence[Constraint],
    promises: Sequence[float],
    every: Mapping[str, Costs],
    largest: Mapping[str, float],
    error: float,
) -> tuple[str, list[Json]]:
    """The verdict on all of them, and a row on each."""
    errors = error / len(constraints), error
    rows = [
        _row(trained, asked, every[asked.cost], largest.get(asked.cost), *errors)
        for trained, asked in zip(constraints, promising(constraints, promises))
    ]
    return verdict_of(rows), rows


def count(
    play: Player, lane: Lane, policy: Path, plan: Plan, seed: int, promises: Sequence[float]
) -> tuple[str, list[int], list[Json]]:
    """Run the episodes: the verdict on all constraints, the outages of the first, and a row on each."""
    (totals,) = play.play([play.run.policy_in(policy, lane)], plan.episodes, [[seed, *b"certify"]], "certify")
    every, first = results_of(lane, play.env, totals).every, first_outage(lane)
    verdict, rows = judge(lane.constraints, promises, every, largest_costs(play.env), plan.error)
    return verdict, [int(exceeds(every[first.cost], first.limit).sum())], rows


def verdict_of(rows: Sequence[Json]) -> str:
    """Certified where every constraint is that can be; violated where one is."""
    verdicts = {row["verdict"] for row in rows} - {"not certifiable"}
    return "violated" if "violated" in verdicts else "certified" if verdicts == {"certified"} else "undecided"


def _row(
    trained: Constraint, asked: Constraint, costs: Costs, largest: float | None, lower_error: float, upper_error: float
) -> Json:
    bounds = asked.exact_bounds(costs, largest, lower_error, upper_error)
    row: Json = {"trained": trained.as_dict()}
    if isinstance(bounds, str):
        words = f"That {asked.words} cannot be certified, since {bounds}; {asked.measure(costs):.4g} was found."
        return row | {"promise": float(asked.limit), "verdict": "not certifiable", "words": words}
    lower, upper, promise = bounds.lower, bounds.upper, float(asked.bound)
    verdict = "certified" if upper <= promise else "violated" if lower > promise else "undecided"
    words = f"{asked.words[0].upper()}{asked.words[1:]}: {verdict}, {bounds.words}, bounds {lower:.4g} to {upper:.4g}."
    return row | {
        "promise": promise,
        **bounds.found,
        "verdict": verdict,
        "upper_bound": upper,
        "lower_bound": lower,
        "words": words,
    }


def same(found: Sequence[Json], written: Sequence[Json]) -> bool:
    """Whether rows say the same, up to rounding."""
    if len(found) != len(written):
        return False
    for one, two in zip(found, written):
        if one.keys() != two.keys():
            return False
        numbers = [name for name in one if name in ("upper_bound", "lower_bound", "mean", "promise")]
        if any(one[name] != two[name] for name in one if name not in (*numbers, "words")):
            return False
        if not _read_alike(one["words"], two["words"]):
            return False
        if not all(np.isclose(one[name], two[name], rtol=1e-6, atol=1e-9) for name in numbers):
            return False
    return True


def _read_alike(one: str, two: str) -> bool:
    """Whether sentences are the same, but for the last of the four digits that numbers have in them."""
    first, second = ([float(each.replace(",", "")) for each in NUMBER.findall(text)] for text in (one, two))
    return NUMBER.sub("#", one) == NUMBER.sub("#", two) and np.allclose(first, second, rtol=2e-3, atol=1e-9)
