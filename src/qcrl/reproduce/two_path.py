"""Figure 1: the cost of two routes in closed form, and which of them a mean and an outage constraint take."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import weibull_min

from qcrl.envs.point import pictures as render
from qcrl.envs.two_path import Route, TwoPathEnv
from qcrl.kinds import Json
from qcrl.reproduce.claims import Claim, Comparison, judge
from qcrl.reproduce.results import Found, one
from qcrl.show.figures import GREY, INK, PALETTE

TITLE = "Two routes: the lower mean cost has the heavier tail"
SOURCES = ("two-path",)
LIMIT, PROBABILITY = 15.0, 0.1
GRID: Json = {
    "environments": ["TwoPathEnv-v0"],
    "preset": "fast",
    "limits": [LIMIT],
    "probabilities": [PROBABILITY],
    "seeds": 10,
    "first_seed": 100,
    "steps": 1_000_000,
    "algorithms": [
        "ppo_lag",
        "qcpo",
        {"name": "wcsac", "steps": 100_000},
        {"name": "wcsac_weibull", "steps": 100_000},
        "cvar_pg",
    ],
}
LEAST = {"steps": 240_000, "episodes": 1000}
"""Short episodes are cheap: no scale goes below this."""
ROUTES = TwoPathEnv().routes
RUNS = {
    "ppo_lag-fast": "PPO_Lag: mean cost at most 15",
    "qcpo-fast": "QCPO: outage at most .1",
    "wcsac-fast": "WCSAC: CVaR at most 15",
    "wcsac_weibull-fast": "WCSAC with a Weibull: CVaR at most 15",
    "cvar_pg-fast": "CVaR policy gradient: CVaR at most 15",
}


def draw(found: Sequence[Found]) -> Figure:
    drawn = Figure(figsize=(9.5, 3.6), layout="constrained")
    left, right = drawn.subplots(1, 2)
    _draw_routes(left)
    _draw_choices(right, found)
    return drawn


def _draw_routes(axes: Axes) -> None:
    x = np.linspace(0.01, 45, 400)
    for number, route in enumerate(ROUTES):
        colour = np.divide(render.ROUTES[number], 255)
        text = f"route {number + 1}: mean {route.mean():.1f}, outage {route.outage(LIMIT):.3f}"
        axes.plot(x, weibull_min.pdf(x, route.shape, scale=route.scale), color=colour, label=text)
        axes.axvline(route.mean(), color=colour, linewidth=1, linestyle="--")
    axes.axvline(LIMIT, color=GREY, linewidth=1, linestyle=":", label="limit")
    axes.set(xlabel="cost of an episode (dashed: mean)", ylabel="density", xlim=(0, 45))
    axes.legend(frameon=False, fontsize=8, loc="upper right")


def _draw_choices(axes: Axes, found: Sequence[Found]) -> None:
    """Every seed: how often it takes route 2, and its outage over fresh episodes."""
    colours, sizes = (PALETTE[0], *PALETTE[3:]), (30, 30, 120, 60, 20)  # CVaR constraints lead to the same episodes
    for (label, name), colour, size in zip(RUNS.items(), colours, sizes):
        each = one(found, label=label)
        if each is not None:
            axes.scatter(share_of_second(each), each.per_seed("outage"), size, color=colour, label=name, alpha=0.8)
    ends = [route.outage(LIMIT) for route in ROUTES]
    axes.plot([0, 1], ends, color=INK, linewidth=1, label="closed form", zorder=0)
    axes.axhline(PROBABILITY, color=GREY, linewidth=1, linestyle=":", label="asked outage")
    axes.set(xlabel="share of episodes on route 2", ylabel="outage", xlim=(-0.05, 1.05), ylim=(0, 0.4))
    axes.legend(frameon=False, fontsize=8)


def share_of_second(each: Found) -> np.ndarray:
    """The reward says which route an episode took."""
    first, second = (route.reward for route in ROUTES)
    return (first - each.per_seed("episode_return")) / (first - second)


def claims(found: Sequence[Found]) -> list[Claim]:
    first, second = ROUTES
    means = f"means {first.mean():.2f} and {second.mean():.2f}"
    facts = f"{means}, outages {first.outage(LIMIT):.3f} and {second.outage(LIMIT):.3f}"
    lighter = first.mean() < second.mean() and first.outage(LIMIT) > second.outage(LIMIT)
    return [
        judge("The route with the lower mean cost has the heavier tail.", [Comparison(lighter, facts)], 1),
        judge("A constraint on the mean takes that route.", _takes(found, "ppo_lag-fast", first), 1),
        judge("A constraint on the outage must take the other.", _takes(found, "qcpo-fast", second), 1),
    ]


def _takes(found: Sequence[Found], label: str, route: Route) -> list[Comparison]:
    """Nine of ten episodes, in the mean over seeds."""
    each = one(found, label=label)
    if each is None:
        return []
    second = float(np.mean(share_of_second(each)))
    share = second if route is ROUTES[1] else 1 - second
    outage = float(np.mean(each.per_seed("outage")))
    text = f"{share:.1%} of episodes over {each.seeds} seeds take route {ROUTES.index(route) + 1}, outage {outage:.3f}"
    return [Comparison(share >= 0.9, text)]
