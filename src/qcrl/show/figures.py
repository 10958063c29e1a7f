"""Figures of runs: learning curves over seeds, the multiplier, and the distribution of episode costs with its tails."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.typing import LineStyleType

from qcrl.errors import UserError
from qcrl.kinds import Json, Settings
from qcrl.runs.checkpoints import write_file
from qcrl.runs.folder import Run, label, load
from qcrl.show.curves import Curves, Evaluation, empirical_survival, evaluations, read_curves, tails

# Okabe and Ito's palette without its yellow: told apart with any kind of colour vision, and on white paper.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[LineStyleType, ...] = ("-", (0, (6, 2)), (0, (2, 1.2)), (0, (7, 2, 1.5, 2)))
"""Seven colours and four line styles repeat together only after 28 curves."""
INK, GREY = "#282c34", "#6b7280"
FORMATS = (".png", ".svg", ".pdf")
SPREAD = 30
"""Multipliers that end so many times apart share a logarithmic axis."""

TITLES = {
    "episode_return": "return",
    "outage": "outage probability",
    "episode_cost": "mean episode cost",
    "cost_quantile": "cost quantile",
    "multiplier": "multiplier",
}
KINDS: dict[str, tuple[str, ...]] = {
    "curves": ("episode_return", "outage", "episode_cost"),
    "multiplier": ("multiplier",),
}


def plot(paths: Sequence[str | Path], out: str | Path, kind: str = "curves") -> Path:
    """Draw runs into a PNG, SVG or PDF file; `kind` is curves, costs or multiplier."""
    out = check_format(out, FORMATS)
    if kind == "costs":
        drawn = cost_figure([load(path) for path in paths])
    elif kind == "limits":
        drawn = limits_figure([load(path) for path in paths])
    elif kind in KINDS:
        curves = read_curves(paths)
        drawn = figure(curves, shown_columns(curves, kind))
    else:
        raise UserError(f"kind is {kind!r}; choose one of {', '.join([*KINDS, 'costs', 'limits'])}")
    return save(drawn, out)


def shown_columns(curves: Sequence[Curves], kind: str) -> tuple[str, ...]:
    """What a kind of figure shows; where several constraints hold together, each of them in the place of the first."""
    each = list(dict.fromkeys(key for curve in curves for key in curve.bounds))
    if not each:
        return KINDS[kind]
    return ("episode_return", *each) if kind == "curves" else tuple(f"multiplier_{key}" for key in each)


def _title(column: str) -> str:
    """Of one of several constraints: its kind, and the name of its cost."""
    return column.replace("outage_", "outage probability of ", 1).replace("_", " ")


def check_format(out: str | Path, formats: Sequence[str]) -> Path:
    """The file to write to, if its name ends in one of the formats and its folder can be made."""
    out = Path(out)
    if out.suffix.lower() not in formats:
        raise UserError(f"cannot write {out}: its name must end in {', '.join(formats)}; give such a name with --out")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder of {out} cannot be made ({error.strerror}); give another file") from None
    return out


def save(drawn: Figure, out: Path) -> Path:
    """Either whole, or not at all."""
    picture = io.BytesIO()
    drawn.savefig(picture, format=out.suffix[1:].lower(), dpi=150, bbox_inches="tight", facecolor="white")
    try:
        write_file(out, picture.getvalue())
    except OSError as error:
        raise UserError(f"cannot write {out} ({error.strerror or error}); give another file") from None
    return out


def figure(curves: Sequence[Curves], rows: Sequence[str] = KINDS["curves"], height: float = 2.3) -> Figure:
    """Columns of metrics.csv against environment steps, mean and standard deviation over seeds.

    One column of panels per environment and one row per name in `rows`, as in the paper's figures; a label has the
    same colour and line style in every panel.
    """
    environments = list(dict.fromkeys(each.environment for each in curves))
    styles = _styles(list(dict.fromkeys(each.label for each in curves)))
    drawn = Figure(figsize=(max(4.6, 3.6 * len(environments)), height * len(rows) + 0.6), layout="constrained")
    panels = drawn.subplots(len(rows), len(environments), sharex="col", squeeze=False)
    for column, environment in enumerate(environments):
        shown = [each for each in curves if each.environment == environment]
        panels[0, column].set_title(_literal(environment), fontsize=11, color=INK)
        panels[-1, column].set_xlabel("environment steps")
        for row, name in enumerate(rows):
            axes = panels[row, column]
            _tidy(axes)
            drawn_here = [each for each in shown if name in each.columns or name in TITLES]
            for each in drawn_here:
                _draw_curve(axes, each, name, styles[each.label])
            _draw_targets(axes, drawn_here, name)
            if name.startswith("multiplier"):
                _fit_multipliers(axes, [end for each in drawn_here for end in each.over_seeds(name)[1][-1:]])
            if column == 0:
                axes.set_ylabel(TITLES.get(name) or _title(name))
        panels[-1, column].xaxis.set_major_formatter(_steps)
        panels[-1, column].set_xlim(left=0)
    handles = [Line2D([], [], label=_literal(label), linewidth=1.8, **style) for label, style in styles.items()]
    if {"outage", "episode_cost", "cost_quantile"} & set(rows) or any(each.bounds for each in curves):
        handles.append(Line2D([], [], color=GREY, linewidth=1, linestyle=":", label="asked for"))
    _legend(drawn, handles, len(environments))
    return drawn


def _styles(labels: Sequence[str]) -> dict[str, Settings]:
    """A colour for each algorithm and a line style for each setting of it; where these run out, both for each label."""
    parts = [label.partition(", ")[::2] for label in labels]
    names, settings = (list(dict.fromkeys(column)) for column in zip(*parts))
    together = [(names.index(name), settings.index(setting)) for name, setting in parts]
    if len(names) == 1 or len(names) > len(PALETTE) or len(settings) > len(DASHES):
        together = [(index, index) for index in range(len(labels))]
    return {
        label: {"color": PALETTE[colour % len(PALETTE)], "linestyle": DASHES[dash % len(DASHES)]}
        for label, (colour, dash) in zip(labels, together)
    }


def _draw_curve(axes: Axes, curves: Curves, name: str, style: Settings) -> None:
    steps, mean, std = curves.over_seeds(name)
    axes.plot(steps, mean, linewidth=1.6, **style)
    if len(curves.seeds) > 1:
        low = np.maximum(mean - std, 0) if name != "episode_return" else mean - std
        high = np.minimum(mean + std, 1) if name == "outage" else mean + std
        axes.fill_between(steps, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _draw_targets(axes: Axes, shown: Sequence[Curves], name: str) -> None:
    """Dotted lines at what was asked for. Early costs of many times the limit, which flatten the rest, are cut off."""
    if name == "outage":
        targets = sorted({each.probability for each in shown})
        axes.set_ylim(0, min(1.0, max(axes.get_ylim()[1], 1.5 * max(targets))))
    elif name in ("episode_cost", "cost_quantile"):
        targets = sorted({each.limit for each in shown})
        settled = max(mean[len(mean) // 5 :].max(initial=0) for _, mean, _ in (c.over_seeds(name) for c in shown))
        axes.set_ylim(0, 1.25 * max(settled, *targets))
    elif any(name in each.bounds for each in shown):
        targets = sorted({each.bounds[name] for each in shown if name in each.bounds})
        settled = max(mean[len(mean) // 5 :].max(initial=0) for _, mean, _ in (c.over_seeds(name) for c in shown))
        axes.set_ylim(0, 1.25 * max(settled, *targets))
    else:
        return
    for target in targets:
        axes.axhline(target, color=GREY, linewidth=1, linestyle=":", zorder=1)


def _fit_multipliers(axes: Axes, ends: Sequence[float]) -> None:
    positive = [end for end in ends if end > 0]
    if positive and max(positive) > SPREAD * min(positive):
        axes.set_yscale("symlog", linthresh=max(min(positive), max(positive) / 1e4))
        axes.set_ylim(bottom=0)


def _steps(value: float, _: object = None) -> str:
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def _literal(text: str) -> str:
    """A name as it is: between two dollars, matplotlib would look for a formula."""
    return text.replace("$", r"\$")


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def _legend(drawn: Figure, handles: list[Line2D], columns: int) -> None:
    drawn.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), max(2, 5 * columns // 3)),
        frameon=False,
        fontsize=9,
        handlelength=3.2,
    )


def limits_figure(runs: Sequence[Run]) -> Figure:
    """Return and outage over the limit: a line where one policy serves all limits, a mark for each trained for one."""
    series: dict[tuple[str, str], list[Json]] = {}
    lines = set()
    for run in runs:
        one = run.lanes[0].constraint.ranged
        evaluation = evaluations(run)[0]
        for row in evaluation.pooled:
            name = f"{label(run.config)}, p = {row['probability']:g}{', one policy for all limits' if one else ''}"
            series.setdefault((run.config["environment"]["id"], name), []).append(row)
            if one:
                lines.add(name)
    environments = list(dict.fromkeys(environment for environment, _ in series))
    styles = _styles(list(dict.fromkeys(name for _, name in series)))
    drawn = Figure(figsize=(max(5.2, 4.2 * len(environments)), 5.4), layout="constrained")
    panels = drawn.subplots(2, len(environments), sharex="col", squeeze=False)
    for (environment, name), rows in series.items():
        column = environments.index(environment)
        rows = sorted(rows, key=lambda row: row["limit"])
        style = styles[name] | ({"marker": "."} if name in lines else {"linestyle": "", "marker": "D"})
        for axes, key in zip(panels[:, column], ("mean_return", "outage")):
            axes.plot([row["limit"] for row in rows], [row[key] for row in rows], label=name, **style)
        for probability in {row["probability"] for row in rows}:
            panels[1, column].axhline(probability, color=GREY, linewidth=1, linestyle=":", zorder=1)
    for column, environment in enumerate(environments):
        panels[0, column].set_title(environment, fontsize=11, color=INK)
        panels[1, column].set_xlabel("limit")
        panels[1, column].set_ylim(bottom=0)
        for axes in panels[:, column]:
            _tidy(axes)
    panels[0, 0].set_ylabel("return")
    panels[1, 0].set_ylabel("outage probability")
    named = {str(line.get_label()): line for axes in panels.flat for line in axes.get_lines()}
    _legend(drawn, [line for name, line in named.items() if not name.startswith("_")], len(environments))
    return drawn


def cost_figure(runs: Sequence[Run]) -> Figure:
    """Pr(cost > x) on a log axis, one panel per run, evaluation and setting: the episodes and both fitted tails."""
    shown = [
        (run, evaluation, pooled) for run in runs for evaluation in evaluations(run) for pooled in evaluation.pooled
    ]
    width = 2 if len(shown) == 4 else min(3, len(shown))
    height = -(-len(shown) // width)
    drawn = Figure(figsize=(max(5.0, 4.2 * width), 3.4 * height + 0.6), layout="constrained")
    panels = drawn.subplots(height, width, squeeze=False)
    titles = [_cost_title(*each) for each in shown]
    for axes, (run, evaluation, pooled), title in zip(panels.flat, shown, titles):
        _draw_costs(axes, evaluation, pooled)
        name = f" ({run.path.resolve().name})" if titles.count(title) > 1 else ""
        axes.set_title(_literal(title.replace("\n", f"{name}\n")), fontsize=9, color=INK)
    for axes in panels.flat[len(shown) :]:
        axes.set_axis_off()
    handles = [
        Line2D([], [], color=PALETTE[0], linewidth=1.8, label="episodes"),
        *(
            Line2D([], [], color=PALETTE[index], linestyle=DASHES[index], label=name)
            for index, (kind, name) in enumerate((("weibull", "Weibull tail"), ("gaussian", "Gaussian")), 1)
            if any(pooled[kind] for _, _, pooled in shown)
        ),
        Line2D([], [], color=GREY, linestyle=":", label="limit and asked outage"),
        Line2D([], [], color=PALETTE[0], marker="D", linestyle="", label="cost quantile at 1 - p"),
    ]
    _legend(drawn, handles, width)
    return drawn


def _cost_title(run: Run, evaluation: Evaluation, pooled: Json) -> str:
    limit = f", limit {pooled['limit']:g}" if len({lane.limit for lane in run.lanes}) > 1 else ""
    setting = f"{label(run.config)} on {run.config['environment']['id']}, p = {pooled['probability']:g}{limit}"
    return f"{setting}\n{evaluation.name}"


def _draw_costs(axes: Axes, evaluation: Evaluation, pooled: Json) -> None:
    _tidy(axes)
    probability, limit = pooled["probability"], pooled["limit"]
    costs = evaluation.costs(probability, limit)
    x, share = empirical_survival(costs)
    floor = 0.5 / len(costs)
    end = 1.05 * max(x[-1], limit)
    axes.step(
        np.append(x, end), np.maximum(np.append(share, 0), floor / 10), where="post", color=PALETTE[0], linewidth=1.8
    )
    fine = np.linspace(0, end, 400)
    for tail, share in tails(pooled, fine).items():
        index = 1 if tail == "weibull" else 2
        style: Settings = {"color": PALETTE[index], "linestyle": DASHES[index]}
        axes.plot(fine, np.maximum(share, floor / 10), linewidth=1.4, **style)
    axes.axvline(limit, color=GREY, linewidth=1, linestyle=":")
    axes.axhline(probability, color=GREY, linewidth=1, linestyle=":")
    axes.plot([pooled["cost_quantile"]], [probability], "D", color=PALETTE[0], markersize=5, clip_on=False)
    axes.set_yscale("log")
    axes.set_ylim(floor, 1.2)
    axes.set_xlim(0, end)
    axes.set_xlabel("episode cost x")
    axes.set_ylabel("Pr(cost > x)")
