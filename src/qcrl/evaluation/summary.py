"""What episodes tell about a policy: outage, quantile and CVaR of their costs, and the tails fitted to them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.stats import norm, weibull_min

from qcrl import stats, tails
from qcrl.constraints import Constraint, any_over, exceeds, keys
from qcrl.kinds import Json, Settings
from qcrl.quantiles import grid
from qcrl.runs.lane import Lane

TAIL_LEVELS = grid(25)[-8:]
"""Where a Weibull tail is fitted to the costs: the eight highest of 25 levels, as in the paper."""


FEWEST_VALUES = 6
"""Where episodes have fewer different costs than this, such as 0 and 1, no tail is fitted to them."""


class Results(NamedTuple):
    """Return and cost of every episode, the cost being the one that the constraint is about."""

    returns: Float[np.ndarray, " episodes"]
    costs: Float[np.ndarray, " episodes"]
    every: Mapping[str, Float[np.ndarray, " episodes"]] = {}
    """All costs of the environment by name."""


@dataclass(frozen=True)
class Summary:
    """What some episodes tell about one setting. Intervals hold with a confidence of 95%."""

    seed: int | None
    """None where several seeds are pooled."""
    seeds: int
    probability: float
    limit: float
    episodes: int
    outages: int
    outage: float
    outage_low: float
    outage_high: float
    mean_return: float
    std_return: float
    mean_cost: float
    mean_cost_over: float | None
    """Mean cost of episodes over the limit: a policy that has spent its budget may no longer care. None without."""
    cost_quantile: float
    """At level 1 - probability."""
    cost_quantile_low: float | None
    """None where there are too few episodes for a bound."""
    cost_quantile_high: float | None
    cvar: float
    """Mean cost of the worst share `probability` of the episodes."""
    weibull: dict[str, float] | None
    """Shape and scale fitted to the upper quantiles, and the outage they imply; None where these are 0 or few."""
    gaussian: dict[str, float] | None
    """Mean and standard deviation, and the outage they imply; None where costs have a handful of values only."""
    learning_rate: float | None = None
    """Only where lanes of a run differ in it."""
    over_seeds: dict[str, float] | None = None
    """Spread over seeds: interquartile mean of the return with its bootstrap interval, and the range of the outage."""
    mean_costs: dict[str, float] | None = None
    """Of each cost, where the environment has several."""
    constraints: list[Json] | None = None
    """What the episodes tell about each constraint, where several hold together."""
    outage_any: float | None = None
    """Share of episodes over the limit of any outage constraint, where there are several."""


def summarise(lanes: Sequence[Lane], totals: Sequence[Results]) -> Summary:
    """The episodes of one or several seeds under the same setting, pooled."""
    probability, limit = lanes[0].probability, lanes[0].limit
    returns = np.concatenate([each.returns for each in totals]).astype(float)
    costs = np.concatenate([each.costs for each in totals]).astype(float)
    over = exceeds(costs, limit)
    outages = int(over.sum())
    low, high = stats.outage_interval(outages, len(costs))
    quantile_low, quantile_high = stats.quantile_interval(costs, 1 - probability)
    return Summary(
        seed=lanes[0].seed if len(lanes) == 1 else None,
        seeds=len(lanes),
        probability=probability,
        limit=limit,
        episodes=len(costs),
        outages=outages,
        outage=outages / len(costs),
        outage_low=low,
        outage_high=high,
        mean_return=float(returns.mean()),
        std_return=float(returns.std()),
        mean_cost=float(costs.mean()),
        mean_cost_over=float(costs[over].mean()) if outages else None,
        cost_quantile=float(np.quantile(costs, 1 - probability, method="inverted_cdf")),
        cost_quantile_low=quantile_low if math.isfinite(quantile_low) else None,
        cost_quantile_high=quantile_high if math.isfinite(quantile_high) else None,
        cvar=stats.cvar(costs, probability),
        weibull=None if few_valued(costs) else _weibull(costs, limit),
        gaussian=None if few_valued(costs) else _gaussian(costs, limit),
        learning_rate=lanes[0].learning_rate,
        over_seeds=_over_seeds(totals, limit) if len(lanes) > 1 else None,
        **_together(lanes[0].constraints, totals),
    )


def _together(constraints: Sequence[Constraint], totals: Sequence[Results]) -> Settings:
    """What there is to say where there are several costs or constraints."""
    every = {name: np.concatenate([each.every[name] for each in totals]).astype(float) for name in totals[0].every}
    found: Settings = {}
    if len(every) > 1:
        found["mean_costs"] = {name: float(costs.mean()) for name, costs in every.items()}
    if len(constraints) > 1 and every:
        found["constraints"] = [
            _judged(key, each, every[each.cost]) for key, each in zip(keys(constraints), constraints)
        ]
        over = any_over(constraints, every)
        found["outage_any"] = None if over is None else float(over.mean())
    return found


def _judged(key: str, constraint: Constraint, costs: Float[np.ndarray, " n"]) -> Json:
    """One constraint: what it bounds, what was measured with its 95% interval, and what that means."""
    measured = constraint.measure(costs)
    over = exceeds(costs, constraint.limit)
    low, high = constraint.interval(costs) or (None, None)
    return {
        "name": key,
        **constraint.as_dict(),
        "words": constraint.words,
        "measured": measured,
        "low": low,
        "high": high,
        "bound": float(constraint.bound),
        "judged": constraint.judge(costs),
        "mean_cost": float(costs.mean()),
        "mean_cost_over": float(costs[over].mean()) if over.any() else None,
    }


def few_valued(costs: Float[np.ndarray, " n"]) -> bool:
    """Whether costs have so few values that a distribution with a density says nothing about them."""
    return len(np.unique(costs)) < min(FEWEST_VALUES, len(costs))


def _weibull(costs: Float[np.ndarray, " n"], limit: float) -> dict[str, float] | None:
    quantiles = np.quantile(costs, TAIL_LEVELS)
    positive = quantiles > 0
    if len(set(quantiles[positive])) < 2:
        return None
    tail = tails.fit_weibull(quantiles[positive], TAIL_LEVELS[positive])
    shape, scale = float(tail.shape), float(tail.scale)
    return {"shape": shape, "scale": scale, "outage": float(weibull_min.sf(limit, shape, scale=scale))}


def _gaussian(costs: Float[np.ndarray, " n"], limit: float) -> dict[str, float]:
    mean, std = float(costs.mean()), float(costs.std())
    outage = float(norm.sf(limit, mean, std)) if std > 0 else float(mean > limit)
    return {"mean": mean, "std": std, "outage": outage}


def _over_seeds(totals: Sequence[Results], limit: float) -> dict[str, float]:
    returns = [float(each.returns.mean()) for each in totals]
    outages = [float(exceeds(each.costs, limit).mean()) for each in totals]
    low, high = stats.bootstrap_interval(returns, stats.interquartile_mean)
    return {
        "return_iqm": float(stats.interquartile_mean(returns)),
        "return_iqm_low": low,
        "return_iqm_high": high,
        "outage_min": min(outages),
        "outage_max": max(outages),
        "outage_std": float(np.std(outages)),
    }
