"""Calibration: which policy, or which mixture of two, is to be certified. Its episodes certify nothing.

Every candidate is measured, the few that matter a second time. What its outage may be, given that, is a beta
distribution (Jeffreys' prior); with it the chance of a certificate is predicted, the error of the measurement included.
Of all policies and mixtures of two with the asked chance, the one with the highest return is taken.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

from qcrl.evaluation import together
from qcrl.evaluation.evaluate import Player, results_of
from qcrl.evaluation.plan import Plan
from qcrl.kinds import Json
from qcrl.runs.files import file_hash
from qcrl.runs.lane import Lane

DRAWS = 200
"""Of the outages that candidates may have."""
POINTS, TABLE = 300, 10_000
"""At so many outages the power of a plan is computed, up to three times the promise; and in between interpolated."""
WEIGHTS = np.linspace(0.05, 0.95, 19)
"""Of the first part of a mixture."""
WORTH_MIXING = 0.01
"""A mixture must return more than the best single policy by this share."""
LENGTHS = 10
"""So many lengths of a plan are tried."""


class Candidate(NamedTuple):
    """A policy that may be certified."""

    lane: Lane
    policy: Path


class Measured(NamedTuple):
    """What episodes told of a candidate."""

    episodes: int
    outages: int
    mean_return: float

    @property
    def outage(self) -> float:
        return self.outages / self.episodes

    def and_(self, more: "Measured") -> "Measured":
        """All of its episodes."""
        total = self.episodes + more.episodes
        mean = (self.episodes * self.mean_return + more.episodes * more.mean_return) / total
        return Measured(total, self.outages + more.outages, mean)


Measure = Callable[[int, int, int], Measured]
"""Measures a candidate, by its number, in so many episodes from a first one on."""


class Choice(NamedTuple):
    """What is to be certified, and what is predicted of it."""

    parts: tuple[int, ...]
    """One candidate, or two that are mixed."""
    weights: tuple[float, ...]
    power: float
    """The predicted chance of a certificate."""
    outage: float
    mean_return: float


def calibrate(
    measured: Measure, candidates: int, episodes: int, plan: Plan, power: float, batch: int = 1
) -> tuple[Choice, list[Measured]]:
    """The choice among so many candidates after about so many episodes in all, and what was measured."""
    first = share(episodes, candidates, batch)
    found = [measured(i, first, 0) for i in range(candidates)]
    early = choose(found, plan, power)
    safest = min(range(candidates), key=lambda i: found[i].outage)
    again = sorted({*early.parts, safest})
    more = share(episodes, len(again), batch)
    for i in again:
        found[i] = found[i].and_(measured(i, more, first))
    # Among those measured twice: of many, the luckiest of the first time looks better than it is.
    late = choose([found[i] for i in again], plan, power)
    return late._replace(parts=tuple(again[part] for part in late.parts)), found


def measure(play: Player, candidate: Candidate, episodes: int, first: int = 0) -> Measured:
    """So many episodes of a candidate, from number `first` on."""
    seed = [0, *f"select {candidate.policy.stem}".encode()]
    policy = play.run.policy_in(candidate.policy, candidate.lane)
    totals = play.play_one(policy, episodes, seed, "calibrate", first)
    results = results_of(candidate.lane, play.env, totals)
    outages = together.counted(candidate.lane, results)
    return Measured(episodes, outages, float(np.mean(results.returns)))


def share(episodes: int, among: int, batch: int) -> int:
    """What each of so many candidates plays at a time: half of the episodes serve all, the others those that matter."""
    return batches(episodes / 2 / among, batch)


def lengths(episodes: int, batch: int) -> list[int]:
    """Of the plans that are tried, where so many episodes may certify."""
    tried = (batches(episodes * (n + 1) / LENGTHS, batch) for n in range(LENGTHS))
    return sorted({episodes, *(min(each, episodes) for each in tried)})


def batches(episodes: float, size: int) -> int:
    """About so many, in whole batches where that is half a batch or more, so that they need no program of their own."""
    return max(1, round(episodes)) if episodes < size / 2 else size * max(1, round(episodes / size))


def choose(measured: Sequence[Measured], plan: Plan, power: float) -> Choice:
    """The highest return among policies and mixtures with this predicted chance; the best chance where none has it."""
    outages = _outages(measured)
    single = [
        Choice((i,), (1.0,), float(_chance(plan, outages[i])), each.outage, each.mean_return)
        for i, each in enumerate(measured)
    ]
    fit = [each for each in single if each.power >= power]
    best = max(fit, key=lambda each: each.mean_return, default=None)
    worth = -np.inf if best is None else best.mean_return + WORTH_MIXING * abs(best.mean_return)
    mixed = [
        each for pair in combinations(range(len(measured)), 2) for each in _mixtures(measured, outages, pair, plan)
    ]
    better = [each for each in mixed if each.power >= power and each.mean_return > worth]
    if better:
        return max(better, key=lambda each: each.mean_return)
    return max(single, key=lambda each: each.power) if best is None else best


def _mixtures(
    measured: Sequence[Measured],
    outages: Sequence[Float[np.ndarray, " draws"]],
    pair: tuple[int, int],
    plan: Plan,
) -> list[Choice]:
    """All mixtures of two."""
    i, j = pair
    blend = lambda one, other: np.multiply.outer(WEIGHTS, one) + np.multiply.outer(1 - WEIGHTS, other)
    means = (
        blend(getattr(measured[i], name), getattr(measured[j], name)).tolist() for name in ("outage", "mean_return")
    )
    chances = _chance(plan, blend(outages[i], outages[j])).tolist()
    weights = zip(WEIGHTS.tolist(), (1 - WEIGHTS).tolist())
    return [Choice(pair, *row) for row in zip(weights, chances, *means)]


def shortest(measured: Sequence[Measured], choice: Choice, plans: Sequence[Plan], power: float) -> Plan:
    """The first of these plans that has the predicted chance for the choice; else the last."""
    outages = _outages([measured[part] for part in choice.parts])
    mixed = np.average(outages, axis=0, weights=choice.weights)
    return next((plan for plan in plans if _chance(plan, mixed) >= power), plans[-1])


def calibration_rows(run_path: Path, candidates: Sequence[Candidate], measured: Sequence[Measured]) -> list[Json]:
    """What a certificate says of its candidates."""
    return [
        {
            "policy": candidate.policy.relative_to(run_path).as_posix(),
            "lane": str(candidate.lane),
            "sha256": file_hash(candidate.policy),
            **each._asdict(),
        }
        for candidate, each in zip(candidates, measured)
    ]


def _outages(measured: Sequence[Measured]) -> list[Float[np.ndarray, " draws"]]:
    """Outages that each may have, evenly over its beta distribution, in an order of its own."""
    rng = np.random.default_rng(0)
    return [rng.permutation(_beta(each.outages, each.episodes)) for each in measured]


@lru_cache(maxsize=4096)
def _beta(outages: int, episodes: int) -> Float[np.ndarray, " draws"]:
    levels = (np.arange(DRAWS) + 0.5) / DRAWS
    return stats.beta.ppf(levels, outages + 0.5, episodes - outages + 0.5)


@lru_cache(maxsize=64)
def _powers(plan: Plan) -> Float[np.ndarray, " table"]:
    """The plan's power from no outage to `_reach` of it, evenly spaced."""
    outages = np.linspace(0, _reach(plan), POINTS)
    if len(plan.looks) == 1:
        power = stats.binom.cdf(plan.certify_at[0], plan.episodes, outages)
    else:
        power = np.array([plan.power(outage) for outage in outages])
    return np.interp(np.linspace(0, _reach(plan), TABLE), outages, power)


def _reach(plan: Plan) -> float:
    return min(3 * plan.promise, 1.0)


def _chance(plan: Plan, outages: Float[np.ndarray, "*batch draws"]) -> Float[np.ndarray, "*batch"]:
    """The plan's power, over all outages that there may be."""
    places = np.rint(outages * ((TABLE - 1) / _reach(plan))).astype(int)
    return _powers(plan)[np.minimum(places, TABLE - 1)].mean(axis=-1)
