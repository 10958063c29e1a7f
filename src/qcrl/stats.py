"""What episodes and seeds can tell: exact statements about outages, quantiles and CVaR, and the spread over seeds."""

from collections.abc import Callable, Sequence
from numbers import Real

import numpy as np
from jaxtyping import Float
from scipy import stats

from qcrl.errors import UserError

MOST_STAKED = 0.9
"""Of the capital, where a mean is bounded by betting against higher ones."""
MOST_EPISODES = 1e8
"""More than anyone will run."""


def outage_interval(outages: int, episodes: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact two-sided (Clopper-Pearson) confidence interval for the outage probability."""
    _check_counts(outages, episodes, confidence)
    interval = stats.binomtest(int(outages), int(episodes)).proportion_ci(confidence, method="exact")
    return float(interval.low), float(interval.high)


def outage_bound(outages: int, episodes: int, confidence: float = 0.95) -> float:
    """Exact one-sided upper confidence bound for the outage probability."""
    _check_counts(outages, episodes, confidence)
    return float(stats.beta.ppf(confidence, outages + 1, episodes - outages)) if outages < episodes else 1.0


def outage_lower_bound(outages: int, episodes: int, confidence: float = 0.95) -> float:
    """Exact one-sided lower confidence bound for the outage probability."""
    _check_counts(outages, episodes, confidence)
    return float(stats.beta.ppf(1 - confidence, outages, episodes - outages + 1)) if outages > 0 else 0.0


def episodes_needed(probability: float, confidence: float = 0.95, expected: float = 0.0, power: float = 0.8) -> int:
    """Smallest number of episodes that certifies `probability` with this power if the true outage is `expected`.

    Certified means `outage_bound(outages, episodes, confidence) <= probability`. Since outages are whole numbers, the
    power saw-tooths as episodes are added: run exactly this many, because a few more may have a little less power.
    """
    for name, value in (("probability", probability), ("confidence", confidence), ("power", power)):
        _check_open_unit(name, value)
    if not 0 <= expected < probability:
        raise UserError(
            f"expected is {expected}, but only an outage below the probability ({probability}) can be certified; "
            "expect less or promise more"
        )
    # By the normal approximation, so that the search below ends.
    reach = sum(
        stats.norm.ppf(level) * (p * (1 - p)) ** 0.5 for level, p in ((confidence, probability), (power, expected))
    )
    about = (reach / (probability - expected)) ** 2
    if about > MOST_EPISODES:
        raise UserError(
            f"expected is {expected}, so close to the probability ({probability}) that about {about:.1g} episodes "
            "would be needed; expect less or promise more"
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


def quantile_interval(costs: Float[np.ndarray, " n"], level: float, confidence: float = 0.95) -> tuple[float, float]:
    """Two order statistics between which the quantile lies, whatever the distribution; infinite where none is."""
    _check_open_unit("level", level)
    _check_open_unit("confidence", confidence)
    # The quantile is below order statistic i if at most i - 1 of the costs, binomially many, are below the quantile.
    in_order = np.concatenate([[-np.inf], np.sort(costs), [np.inf]])
    share = (1 - confidence) / 2
    low = stats.binom.ppf(share, len(costs), level)
    high = stats.binom.isf(share, len(costs), level) + 1
    return float(in_order[int(low)]), float(in_order[int(high)])


def cvar(costs: Float[np.ndarray, " n"], mass: float) -> float:
    """Mean of the worst share `mass` of the costs. An episode on the edge of that share counts in part."""
    _check_open_unit("mass", mass)
    worst_first = np.sort(costs)[::-1]
    counted = np.clip(mass * len(costs) - np.arange(len(costs)), 0, 1)
    return float(np.average(worst_first, weights=counted))


def mean_bound(values: Float[np.ndarray, " n"], most: float, confidence: float = 0.95) -> float:
    """Exact one-sided upper confidence bound for the mean of numbers between 0 and `most`, whatever their distribution.

    By betting (Waudby-Smith and Ramdas, 2024): against a mean of at least m one stakes on every value, by what those
    before it say. Then the capital is a supermartingale, and reaches 1 / (1 - confidence) with at most the error.
    """
    _check_open_unit("confidence", confidence)
    x = np.asarray(values, float) / most
    if not len(x) or x.min() < 0 or x.max() > 1:
        raise UserError(f"values must be at least one, each between 0 and {most:g}, but they are not; give their range")
    before = np.arange(1, len(x) + 1)
    mean = (0.5 + np.concatenate([[0.0], np.cumsum(x[:-1])])) / before
    spread = (0.25 + np.concatenate([[0.0], np.cumsum((x[:-1] - mean[1:]) ** 2)])) / before
    needed = -np.log(1 - confidence)
    stakes = np.minimum(MOST_STAKED, np.sqrt(2 * needed / (spread * len(x))))
    refuted = lambda m: np.cumsum(np.log1p(-stakes * (x - m))).max() >= needed
    low, high = 0.0, 1.0
    if not refuted(high):
        return float(most)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return float(most * high)


def interquartile_mean(
    values: Float[np.ndarray, "*batch seeds"] | Sequence[float], axis: int = -1
) -> Float[np.ndarray, "*batch"]:
    """Mean of the middle half: a seed that went wrong, or very well, does not move it."""
    return stats.trim_mean(values, 0.25, axis=axis)


def bootstrap_interval(
    values: Float[np.ndarray, " seeds"] | Sequence[float],
    statistic: Callable[..., np.ndarray] = np.mean,
    confidence: float = 0.95,
    rng: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic over seeds, always the same for the same `rng`.

    The statistic takes an `axis`, as those of NumPy do.
    """
    _check_open_unit("confidence", confidence)
    if len(values) < 2:
        raise UserError(f"{len(values)} value was given, but a spread needs at least two; train more seeds")
    drawn = np.random.default_rng(rng).choice(np.asarray(values, float), (10_000, len(values)))
    low, high = np.quantile(statistic(drawn, axis=-1), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def check_episodes(episodes: float) -> None:
    """Raise where nobody can run so many."""
    if not isinstance(episodes, Real) or not 1 <= episodes <= MOST_EPISODES or episodes != int(episodes):
        raise UserError(
            f"episodes is {episodes}, but must be a whole number from 1 to {MOST_EPISODES:g}; 1000 is a good start"
        )


def _check_counts(outages: int, episodes: int, confidence: float) -> None:
    if episodes < 1:
        raise UserError(f"episodes is {episodes}, but at least one episode is needed; run some first")
    if not 0 <= outages <= episodes:
        raise UserError(f"outages is {outages}, but it must lie between 0 and the number of episodes ({episodes})")
    _check_open_unit("confidence", confidence)


def _check_open_unit(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise UserError(f"{name} is {value}, but it must lie strictly between 0 and 1; 0.95 means 95%")
