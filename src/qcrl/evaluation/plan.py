"""Plans of a certificate: after how many episodes outages are counted, and which counts end it. All of it is exact.

A fixed plan looks once. A sequential one looks several times, and spends its error over the looks: the probability of a
false certificate by look j, at an outage that equals the promise, is at most error * (share of episodes) ** spending.
Probabilities are sums over all counts of outages, look by look, so nothing is approximated.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats
from scipy.optimize import brentq

from qcrl.errors import UserError
from qcrl.stats import episodes_needed, outage_bound, outage_lower_bound

LOOKS = (5, 8, 10)
"""How many a sequential plan may have, evenly spaced."""
SPENDINGS = (0.7, 1.0, 1.4)
"""How it may spend its error: the lower, the sooner it may end, and the more episodes it may take."""
MOST_LONGER = 1.25
"""It may take so many times the episodes of the fixed plan with the same power, at most."""
USUALLY_SHORTER = 0.7
"""In the median it shall take at most so many times those, at the expected outage."""
LENGTHS = 13
"""How many lengths are tried in between."""
BEYOND = 1e-6
"""Counts whose upper tail is this share of the error are taken as one."""


@dataclass(frozen=True)
class Plan:
    """When outages are counted, and what ends the counting."""

    promise: float
    """The outage that is to be certified."""
    error: float
    """Of either verdict: the probability that it is false, at an outage that equals the promise."""
    looks: tuple[int, ...]
    """Episodes at each look; the last is the most that are run."""
    certify_at: tuple[int, ...]
    """At most so many outages at that look certify; -1 where none do."""
    violate_at: tuple[int, ...]
    """So many outages at that look, or more, show that the promise is broken."""
    spending: float = 1.0

    @property
    def episodes(self) -> int:
        return self.looks[-1]

    def verdict(self, look: int, outages: int) -> str | None:
        """certified, violated, at the last look undecided; None where more episodes are needed."""
        if outages <= self.certify_at[look]:
            return "certified"
        if outages >= self.violate_at[look]:
            return "violated"
        return "undecided" if look == len(self.looks) - 1 else None

    def power(self, outage: float) -> float:
        """The probability of a certificate at this outage."""
        return sum(state.certified for state in _walk(self, outage))

    def bounds(self, look: int, outages: int) -> tuple[float, float]:
        """Exact one-sided lower and upper bounds, each with the plan's error: Clopper-Pearson where it looks once.

        Outcomes are ordered by stage: the sooner certified, the lower; the sooner violated, the higher.
        """
        if len(self.looks) == 1:
            each = 1 - self.error
            return outage_lower_bound(outages, self.episodes, each), outage_bound(outages, self.episodes, each)
        low = _root(lambda outage: self.error - 1 + self._at_most(look, outages - 1, outage))
        high = _root(lambda outage: self._at_most(look, outages, outage) - self.error)
        return low, high

    def _at_most(self, look: int, outages: int, outage: float) -> float:
        """The probability of an outcome that is no higher than so many outages at this look."""
        states = list(_walk(self, outage, look, outages))
        last = states[-1]
        if outages >= self.violate_at[look] - 1 and look < len(self.looks) - 1:
            above = last.mass - float(last.alive[: outages + 1].sum())
            return 1 - sum(state.violated for state in states[:-1]) - above
        return sum(state.certified for state in states[:-1]) + float(last.alive[: outages + 1].sum())


IMPOSSIBLE, WIDTH = 1e-30, 12.0
"""Chances that are left out, and standard deviations beyond which they are smaller."""


def carry_out(plan: Plan, count: Callable[[int, int], int]) -> tuple[str, list[int]]:
    """The verdict, and the outages at every look until it was clear.

    `count(episodes, first)` counts outages in so many episodes, from number `first` on.
    """
    before, counts = 0, list[int]()
    for look, now in enumerate(plan.looks):
        counts.append(sum(counts[-1:]) + count(now - before, before))
        before = now
        verdict = plan.verdict(look, counts[-1])
        if verdict is not None:
            return verdict, counts
    raise AssertionError("the last look always has a verdict")


class Look(NamedTuple):
    """The probabilities at one look: of every count that is still open, and of ending there."""

    alive: Float[np.ndarray, " counts"]
    mass: float
    """That this look is reached. What `alive` lacks are counts far above those that violate."""
    certified: float
    violated: float


def fixed(promise: float, error: float, episodes: int) -> Plan:
    """One look, after so many episodes."""
    return bounded(promise, error, (episodes,))


def sequential(promise: float, error: float, episodes: int, looks: int = LOOKS[-1], spending: float = 1.0) -> Plan:
    """Several looks, the last after so many episodes."""
    at = sorted({-(-episodes * (j + 1) // looks) for j in range(looks)})
    return bounded(promise, error, tuple(at), spending)


def planned(promise: float, error: float, expected: float, power: float, in_looks: bool = False) -> Plan:
    """The plan with the fewest episodes that certifies with this power at the expected outage."""
    episodes = episodes_needed(promise, 1 - error, expected, power)
    once = fixed(promise, error, episodes)
    if not in_looks:
        return once
    tried = (
        sequential(promise, error, most, looks, spending)
        for most in sorted(set(np.linspace(episodes, MOST_LONGER * episodes, LENGTHS).astype(int).tolist()))
        for looks in LOOKS
        for spending in SPENDINGS
    )
    fit = [plan for plan in tried if plan.power(expected) >= power]

    def rank(plan: Plan) -> tuple[float, float]:
        median, mean = duration(plan, expected)
        return max(median - USUALLY_SHORTER * episodes, 0.0), mean

    # So few episodes that looking more than once does not pay leave the fixed plan.
    return min(fit, key=rank, default=once)


def duration(plan: Plan, outage: float) -> tuple[int, float]:
    """Median and mean of the episodes until the verdict, at this outage."""
    ends = np.array([state.certified + state.violated for state in _walk(plan, outage)])
    ends[-1] += 1 - ends.sum()
    return plan.looks[int(np.argmax(np.cumsum(ends) >= 0.5))], float(ends @ np.array(plan.looks))


def planned_outage(promise: float, error: float, episodes: int, power: float) -> float:
    """The highest outage that a fixed plan of so many episodes certifies with this power."""
    least = episodes_needed(promise, 1 - error)
    if episodes < least:
        raise UserError(
            f"{episodes} episodes are too few: even without any outage, an outage of {promise:g} cannot be certified "
            f"at {1 - error:.4g} confidence with fewer than {least}; "
            "allow more with --episodes or by more steps, or promise more"
        )
    most = fixed(promise, error, episodes).certify_at[0]
    # binom.cdf(most, n, q) = power, by the beta distribution.
    return float(stats.beta.ppf(1 - power, most + 1, episodes - most))


@lru_cache(maxsize=1024)
def bounded(promise: float, error: float, looks: tuple[int, ...], spending: float = 1.0) -> Plan:
    """With the bounds that spend the error, each of the two as if the other were not there."""
    allowed = [error * (n / looks[-1]) ** spending for n in looks]
    bounds = _certifying(promise, allowed, looks), _violating(promise, allowed, looks)
    return Plan(promise, error, looks, *bounds, spending)


def _certifying(promise: float, allowed: list[float], looks: tuple[int, ...]) -> tuple[int, ...]:
    size = int(stats.binom.ppf(allowed[-1], looks[-1], promise)) + 2  # more outages never certify
    alive, spent, at = np.eye(1, size)[0], 0.0, []
    for before, now, most in zip((0, *looks), looks, allowed):
        alive = _further(alive, now - before, promise)
        count = int(np.searchsorted(spent + np.cumsum(alive), most, side="right")) - 1
        spent += float(alive[: count + 1].sum())
        alive[: count + 1] = 0
        at.append(count)
    return tuple(at)


def _violating(promise: float, allowed: list[float], looks: tuple[int, ...]) -> tuple[int, ...]:
    size = int(stats.binom.isf(BEYOND * allowed[-1], looks[-1], promise)) + 2
    alive, mass, spent, at = np.eye(1, size)[0], 1.0, 0.0, []
    for before, now, most in zip((0, *looks), looks, allowed):
        alive = _further(alive, now - before, promise)
        # Probability of this count or more, for every count.
        tails = np.maximum(mass - np.concatenate([[0.0], np.cumsum(alive)]), 0.0)
        count = int(np.argmax(spent + tails <= most)) if (spent + tails <= most).any() else size
        spent += float(tails[count]) if count < size else 0.0
        alive[count:] = 0
        mass = float(alive.sum())
        at.append(count if count < size else now + 1)
    return tuple(at)


def _walk(plan: Plan, outage: float, last: int | None = None, most: int = 0) -> Iterator[Look]:
    """Look by look, as far as the last one asked for, with counts up to `most` where that is more than is needed."""
    alive, mass = np.eye(1, max(*plan.violate_at, most) + 1)[0], 1.0
    rows = zip((0, *plan.looks), plan.looks, plan.certify_at, plan.violate_at)
    for before, now, low, high in list(rows)[: None if last is None else last + 1]:
        alive = _further(alive, now - before, outage)
        open_ = alive.copy()
        open_[: low + 1] = 0
        open_[high:] = 0
        certified, left = float(alive[: low + 1].sum()), float(open_.sum())
        yield Look(alive, mass, certified, max(mass - certified - left, 0.0))
        alive, mass = open_, left


def _further(alive: Float[np.ndarray, " counts"], episodes: int, outage: float) -> Float[np.ndarray, " counts"]:
    """The counts after so many more episodes; those beyond the last are left out, and what is as good as impossible."""
    reached = np.zeros(len(alive))
    open_ = np.flatnonzero(alive > IMPOSSIBLE)
    mean, width = episodes * outage, WIDTH * (episodes * outage * (1 - outage)) ** 0.5 + 60
    more = np.arange(max(0, int(mean - width)), min(len(alive), int(mean + width) + 1))
    if open_.size and more.size:
        first, last = int(open_[0]), int(open_[-1])
        ways = np.convolve(alive[first : last + 1], stats.binom.pmf(more, episodes, outage))
        first += int(more[0])
        reached[first : first + len(ways)] = ways[: max(0, len(alive) - first)]
    return np.maximum(reached, 0.0)


def _root(falling: Callable[[float], float]) -> float:
    """Where a function that falls with the outage is 0; 0 or 1 where it never is."""
    least, most = 1e-12, 1 - 1e-12
    if falling(least) <= 0:
        return 0.0
    return 1.0 if falling(most) >= 0 else float(brentq(falling, least, most, xtol=1e-12))
