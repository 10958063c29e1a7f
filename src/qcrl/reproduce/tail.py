"""Figure 3 as a measurement: the critic's view of the cost tail at a start state against rollouts from that very state.

A tail is calibrated if at each level u a share 1 - u of the rollouts costs more than its quantile. Its calibration
error is the mean distance from that, over the levels .70 to .98 that the paper fits its Weibull to.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from qcrl.errors import UserError
from qcrl.kinds import Json, Settings
from qcrl.reproduce.claims import CONFIDENCE, Claim, Comparison, judge
from qcrl.reproduce.results import Found, whole
from qcrl.reproduce.scale import FULL
from qcrl.reproduce.tail_rollouts import KINDS, MODELS, measure
from qcrl.show.figures import DASHES, GREY, PALETTE

TITLE = "The critic's tail at the start state against rollouts"
SOURCES = ("tail",)
GRID: Json = {
    "environments": ["DynamicEnv-v0"],
    **FULL,
    "algorithms": ["qcpo"],
}
__all__ = ["GRID", "SOURCES", "TITLE", "claims", "draw", "extra", "measure"]


class Tails(NamedTuple):
    """What was measured in one lane, for one kind of cost."""

    kind: str
    curve: np.ndarray
    """Level and quantile of the rollouts."""
    models: dict[str, np.ndarray]
    """By model: level, quantile, and the shares of rollouts above it and at least at it."""

    def error(self, model: str) -> float:
        """Calibration error. Where costs repeat, any share between above and at least counts as right."""
        if model not in self.models:
            return float("nan")
        level, _, above, reached = self.models[model].T
        return float(np.mean(np.maximum(0, np.maximum(above - (1 - level), (1 - level) - reached))))


def read(found: Sequence[Found]) -> list[Tails]:
    """All lanes of all folders, in the order of the files."""
    tails = []
    for folder in dict.fromkeys(each.folder for each in found):
        if not (folder / "tail.csv").exists():
            continue
        try:
            tails += _tails(folder)
        except (LookupError, TypeError, ValueError, csv.Error) as error:
            what = f"rollouts.csv and tail.csv in {folder} are not tables of tails ({error!r})"
            raise UserError(f"{what}; make the thin results again") from None
    return tails


def _tails(folder: Path) -> list[Tails]:
    curves, models = (_by_lane(folder / name) for name in ("rollouts.csv", "tail.csv"))
    tails = []
    for lane, rows in models.items():
        names = dict.fromkeys(row["model"] for row in rows)
        numbers = {
            name: _numbers([row for row in rows if row["model"] == name], "level quantile above reached")
            for name in names
        }
        tails.append(Tails(lane[-1], _numbers(curves[lane], "level quantile"), numbers))
    return tails


def _by_lane(path: Path) -> dict[tuple[str, ...], list[dict[str, str]]]:
    lanes: dict[tuple[str, ...], list[dict[str, str]]] = {}
    with open(whole(path), newline="") as file:
        for row in csv.DictReader(file):
            lanes.setdefault((row["seed"], row["probability"], row["limit"], row["kind"]), []).append(row)
    return lanes


def _numbers(rows: Sequence[dict[str, str]], names: str) -> np.ndarray:
    return np.array([[float(row[name]) for name in names.split()] for row in rows])


def draw(found: Sequence[Found]) -> Figure:
    """Tails of the first lane that has all models, for both kinds of cost, and the calibration errors of all lanes."""
    tails = read(found)
    drawn = Figure(figsize=(13, 3.9), layout="constrained")
    panels = drawn.subplots(1, 3)
    for axes, kind in zip(panels, KINDS):
        first = max((each for each in tails if each.kind == kind), key=lambda each: len(each.models), default=None)
        if first is not None:
            _draw_lane(axes, first)
    _draw_errors(panels[2], tails)
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return drawn


def _draw_lane(axes: Axes, tails: Tails) -> None:
    level, quantile = tails.curve.T
    axes.plot(quantile, 1 - level, color="black", linewidth=1.8, label="rollouts")
    for place, (model, name) in enumerate(MODELS.items()):
        if model in tails.models:
            level, quantile, *_ = tails.models[model].T
            style: Settings = {"color": PALETTE[place], "linestyle": DASHES[place % len(DASHES)]}
            axes.plot(quantile, 1 - level, marker=".", linewidth=1.3, label=name, **style)
    axes.set(yscale="log", ylim=(0.005, 1), xlabel=f"{tails.kind} cost x from the start state", ylabel="Pr(cost > x)")
    axes.grid(alpha=0.25)


def _draw_errors(axes: Axes, tails: Sequence[Tails]) -> None:
    width = 0.15
    for place, model in enumerate(MODELS):
        for base, kind in enumerate(KINDS):
            errors = _errors(tails, kind, model)
            if len(errors):
                at = base + (place - 2) * width
                axes.bar(at, errors.mean(), width, color=PALETTE[place], yerr=errors.std(), ecolor=GREY)
    axes.set_xticks(range(len(KINDS)), KINDS)
    axes.set_ylabel("calibration error")


def _errors(tails: Sequence[Tails], kind: str, model: str) -> np.ndarray:
    errors = np.array([each.error(model) for each in tails if each.kind == kind])
    return errors[~np.isnan(errors)]


def extra(found: Sequence[Found]) -> str:
    """The table of calibration errors."""
    tails = read(found)
    lines = [
        "Calibration error, mean ± standard deviation over lanes.",
        "",
        "| model | lanes | discounted | undiscounted |",
    ]
    lines.append("|---|---|---|---|")
    for model, name in MODELS.items():
        errors = [_errors(tails, kind, model) for kind in KINDS]
        shown = [f"{each.mean():.3f} ± {each.std():.3f}" if len(each) else "missing" for each in errors]
        lines.append(f"| {name} | {len(errors[0])} | {' | '.join(shown)} |")
    return "\n".join(lines)


def claims(found: Sequence[Found]) -> list[Claim]:
    tails = read(found)
    return [
        judge(
            "The critic's Weibull describes the tail of the discounted cost better "
            "than a Gaussian of its mean and variance.",
            _smaller(tails, "discounted", "critic_weibull", "critic_gaussian", 1),
            1,
        ),
        judge(
            "A Weibull can describe the tail better than a Gaussian, both fitted to the rollouts.",
            [each for kind in KINDS for each in _smaller(tails, kind, "fitted_weibull", "fitted_gaussian", 2)],
            2,
        ),
        judge(
            "The critic of discounted costs says as much about the undiscounted ones, which the constraint is on.",
            _no_worse(tails),
            1,
        ),
    ]


def _smaller(tails: Sequence[Tails], kind: str, better: str, worse: str, comparisons: int) -> list[Comparison]:
    """By a paired test over lanes."""
    pairs = np.array([[each.error(better), each.error(worse)] for each in tails if each.kind == kind])
    pairs = pairs[~np.isnan(pairs).any(axis=1)] if len(pairs) else pairs
    if len(pairs) < 2:
        return []
    chance = stats.ttest_rel(*pairs.T, alternative="less").pvalue
    text = f"{kind}, error {pairs[:, 0].mean():.3f} against {pairs[:, 1].mean():.3f} over {len(pairs)} lanes"
    return [Comparison(bool(chance <= (1 - CONFIDENCE) / comparisons), text)]


def _no_worse(tails: Sequence[Tails]) -> list[Comparison]:
    inside, outside = (_errors(tails, kind, "critic") for kind in KINDS)
    if len(inside) < 2:
        return []
    text = f"error {inside.mean():.3f} for discounted and {outside.mean():.3f} for undiscounted costs"
    return [Comparison(bool(stats.ttest_rel(outside, inside, alternative="greater").pvalue > 1 - CONFIDENCE), text)]
