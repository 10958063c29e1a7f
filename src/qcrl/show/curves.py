"""What plots and reports read from run folders: curves over seeds, episode costs with their tails, certificates."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import norm, weibull_min

from qcrl.errors import UserError
from qcrl.evaluation.summary import Results, summarise
from qcrl.kinds import Json
from qcrl.runs import shapes
from qcrl.runs.columns import read_columns
from qcrl.runs.folder import Run, label, lanes_of, load, read_config, rows_of
from qcrl.runs.lane import Lane, by_setting, shortest

SETTING = ("seed", "probability", "limit", "env_steps")
"""Columns that a table needs to be drawn."""
RECENT = 100
"""Training episodes per seed that stand in for an evaluation where there is none: the last ones."""


@dataclass(frozen=True)
class Curves:
    """The training of one setting: all seeds of a run that share probability and limit."""

    label: str
    environment: str
    probability: float
    limit: float
    source: str
    """The folder or file that it was read from."""
    columns: dict[str, np.ndarray] = field(repr=False)
    """Those of metrics.csv, for this setting only."""
    bounds: dict[str, float] = field(default_factory=dict)
    """Where several constraints hold together: what each asks for, by the column that shows what was reached."""

    @property
    def seeds(self) -> list[int]:
        return sorted(set(self.columns["seed"].tolist()))

    def over_seeds(self, name: str) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Environment steps, and mean and standard deviation of a column over the seeds that got so far."""
        if name not in self.columns:
            raise UserError(f"{self.source} has no column {name}; it has {', '.join(self.columns)}")
        steps, place = np.unique(self.columns["env_steps"], return_inverse=True)
        seeds, row = np.unique(self.columns["seed"], return_inverse=True)
        table = np.full((len(seeds), len(steps)), np.nan)
        table[row, place] = self.columns[name]
        kept = ~np.isnan(table).all(axis=0)
        return steps[kept], np.nanmean(table[:, kept], axis=0), np.nanstd(table[:, kept], axis=0)


def read_curves(paths: Iterable[str | Path]) -> list[Curves]:
    """The settings in these run folders, or in CSV files with the columns of metrics.csv; labels tell them apart."""
    found = [curves for path in paths for curves in _read_settings(Path(path))]
    if not found:
        raise UserError("there is nothing to show; give at least one run that has trained")
    return _distinct(found)


def _read_settings(path: Path) -> list[Curves]:
    if path.suffix == ".csv":
        folder, table = path.parent, read_columns(path, SETTING)
        config = read_config(folder, shapes.TRAINED) if (folder / "config.json").exists() else None
        lanes = lanes_of(config) if config else ()
        name, environment = (label(config), config["environment"]["id"]) if config else (path.stem, "")
    else:
        run = load(path)
        lanes = run.lanes
        table, name, environment = run.metrics, label(run.config), run.config["environment"]["id"]
    further = [name for name in table if name.startswith(("limit_", "probability_"))]
    names = [name for name in ("probability", "limit", *further, "learning_rate") if name in table]
    settings = dict.fromkeys(zip(*(table[name].tolist() for name in names)))
    curves = []
    for values in settings:
        setting = dict(zip(names, values))
        rows = rows_of(table, setting)
        columns = {column: values[rows] for column, values in table.items()}
        rate = f", lr = {shortest(setting['learning_rate'])}" if "learning_rate" in setting else ""
        others = "".join(f", {key} {shortest(setting[key])}" for key in further if len(set(table[key].tolist())) > 1)
        full = f"{name}, p = {shortest(setting['probability'])}{others}{rate}"
        bounds = _bounds(lanes, setting)
        curves.append(Curves(full, environment, setting["probability"], setting["limit"], str(path), columns, bounds))
    return curves


def _bounds(lanes: Sequence[Lane], setting: dict[str, float]) -> dict[str, float]:
    """What the constraints of this setting ask for, where several hold together."""
    lane = next((lane for lane in lanes if lane.setting == setting), None)
    if lane is None or len(lane.constraints) == 1:
        return {}
    return {key: float(constraint.bound) for key, constraint in zip(lane.keys, lane.constraints)}


def _distinct(found: Sequence[Curves]) -> list[Curves]:
    """Labels also name the limit where there are several, and the run where two would still be the same."""
    several = len({curves.limit for curves in found}) > 1
    named = [replace(c, label=f"{c.label}, d = {shortest(c.limit)}") if several else c for c in found]
    taken = [(c.environment, c.label) for c in named]
    return [
        replace(c, label=f"{c.label} ({_short(c.source)})") if taken.count((c.environment, c.label)) > 1 else c
        for c in named
    ]


def _short(source: str) -> str:
    path = Path(source).resolve()
    return path.parent.name if path.suffix == ".csv" else path.name


@dataclass(frozen=True)
class Evaluation:
    """An evaluation in a run folder, or what the last training episodes say in its place."""

    name: str
    """Where the episodes come from, in words."""
    rows: list[Json]
    """One per lane: seed, probability, limit, outage with its interval, and the like."""
    pooled: list[Json]
    """One per probability and limit, over all seeds."""
    episodes: dict[str, np.ndarray] = field(repr=False)
    """Columns seed, probability, limit, return, cost: one row per episode."""

    def costs(self, probability: float, limit: float) -> Float[np.ndarray, " episodes"]:
        chosen = (self.episodes["probability"] == probability) & (self.episodes["limit"] == limit)
        if not chosen.any():
            raise UserError(f"{self.name}: none is of p = {probability:g} and limit {limit:g}; evaluate the run again")
        return np.sort(self.episodes["cost"][chosen])


def evaluations(run: Run) -> list[Evaluation]:
    """Every evaluation in the folder; without one, the most recent training episodes."""
    return [read_evaluation(path) for path in sorted(run.path.glob("evaluation-*.json"))] or [recent_training(run)]


def read_evaluation(path: Path) -> Evaluation:
    """The evaluation in this JSON file, with the episodes in the CSV file beside it."""
    advice = "evaluate the run again, or remove it"
    try:
        content = shapes.read_json(path, shapes.Evaluation, advice)
    except FileNotFoundError:
        raise UserError(f"there is no {path}; {advice}") from None
    kind = "deterministic actions" if content["deterministic"] else "drawn actions"
    name = f"{content['episodes']:,} fresh episodes per seed, {content['engine']} engine, {kind}"
    table = read_columns(path.with_suffix(".csv"), ("seed", "probability", "limit", "return", "cost"))
    if not all(np.isfinite(table[name]).all() for name in ("return", "cost")):
        raise UserError(f"{path.with_suffix('.csv')} has returns or costs that are not finite; {advice}")
    return Evaluation(name, content["per_lane"], content["pooled"], table)


def recent_training(run: Run) -> Evaluation:
    """The last training episodes of every lane, summed up like an evaluation."""
    table = run.episodes
    rows = [rows_of(table, lane.columns)[-RECENT:] for lane in run.lanes]
    if not any(map(len, rows)):
        raise UserError(f"no episode has ended yet in {run.path}; train it for more steps")
    episodes = {name: column[np.concatenate(rows)] for name, column in table.items()}
    groups = {lane: Results(table["return"][own], table["cost"][own]) for lane, own in zip(run.lanes, rows) if len(own)}
    per_lane = [asdict(summarise([lane], [results])) for lane, results in groups.items()]
    pooled = []
    for lanes in by_setting(list(groups)):
        pooled.append(asdict(summarise(lanes, [groups[lane] for lane in lanes])))
    return Evaluation(f"last {RECENT} training episodes per seed", per_lane, pooled, episodes)


def tails(summary: Json, x: Float[np.ndarray, " n"]) -> dict[str, Float[np.ndarray, " n"]]:
    """Pr(cost > x) under the fitted "weibull" and "gaussian"; without those that the costs did not determine."""
    found = {}
    if weibull := summary["weibull"]:
        found["weibull"] = weibull_min.sf(x, weibull["shape"], scale=weibull["scale"])
    if (gaussian := summary["gaussian"]) and gaussian["std"] > 0:
        found["gaussian"] = norm.sf(x, gaussian["mean"], gaussian["std"])
    return found


def empirical_survival(costs: Float[np.ndarray, " episodes"]) -> tuple[np.ndarray, np.ndarray]:
    """Corners of the staircase Pr(cost > x): after each distinct cost, the share of episodes that cost more."""
    x, counts = np.unique(costs, return_counts=True)
    return np.append(0.0, x), np.append(1.0, 1 - np.cumsum(counts) / len(costs))
