"""Exact statements about an outage probability from counted episodes: intervals, bounds and sample sizes."""

import numpy as np
from scipy import stats

from qcrl.errors import UserError


def outage_interval(outages: int, episodes: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided (Clopper-Pearson) confidence interval for the outage probability."""
    _check_counts(outages, episodes, confidence)
    interval = stats.binomtest(int(outages), int(episodes)).proportion_ci(confidence, method="exact")
    return float(interval.low), float(interval.high)


def outage_bound(outages: int, episodes: int, confidence: float = 0.95) -> float:
    """Exact one-sided upper confidence bound for the outage probability."""
    _check_counts(outages, episodes, confidence)
    return float(stats.beta.ppf(confidence, outages + 1, episodes - outages)) if outages < episodes else 1.0


def episodes_needed(probability: float, confidence: float = 0.95, expected: float = 0.0, power: float = 0.8) -> int:
    """Smallest number of episodes that certifies `probability` with this power if the true outage is `expected`.

    Certified means `outage_bound(outages, episodes, confidence) <= probability`.
    """
    for name, value in (("probability", probability), ("confidence", confidence), ("power", power)):
        _check_open_unit(name, value)
    if not 0 <= expected < probability:
        raise UserError(
            f"expected is {expected}, but only an outage below the probability ({probability}) can be certified; "
            "expect less or promise more"
        )
    # With k outages, the bound meets the probability from n_k episodes on: those within which outage k + 1 would have
    # come, with the asked confidence, were the true outage `probability`. From n_k to n_{k+1} the power only falls.
    first = 0
    while True:
        allowed = np.arange(first, first + 4096)
        episodes = stats.nbinom.ppf(confidence, allowed + 1, probability) + allowed + 1
        enough = stats.binom.cdf(allowed, episodes, expected) >= power
        if enough.any():
            return int(episodes[enough.argmax()])
        first += len(allowed)


def _check_counts(outages: int, episodes: int, confidence: float) -> None:
    if episodes < 1:
        raise UserError(f"episodes is {episodes}, but at least one episode is needed; run some first")
    if not 0 <= outages <= episodes:
        raise UserError(f"outages is {outages}, but it must lie between 0 and the number of episodes ({episodes})")
    _check_open_unit("confidence", confidence)


def _check_open_unit(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise UserError(f"{name} is {value}, but it must lie strictly between 0 and 1; 0.95 means 95%")
