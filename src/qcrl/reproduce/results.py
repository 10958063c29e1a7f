"""Thin results: what is kept of a run for figures and tables, a thousandth of its size, and how it is read again."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float

from qcrl import stats
from qcrl.errors import UserError
from qcrl.kinds import Json
from qcrl.runs import checkpoints
from qcrl.runs.columns import read_columns
from qcrl.runs.folder import Run, load
from qcrl.sweeps.grid import Cell

METRICS = ("iteration", "env_steps", "episode_return", "episode_cost", "cost_quantile", "outage", "multiplier")
EVALUATION = ("episodes", "outages", "outage", "mean_cost", "cost_quantile", "mean_return", "std_return")
POINTS = 105
"""Rows that are kept of every lane, spread evenly over its training."""
FRESH = {"outage": "outage", "episode_cost": "mean_cost", "episode_return": "mean_return"}
"""Columns of evaluation.csv for those of metrics.csv."""


def thin(runs: Iterable[str | Path], out: str | Path, **notes: object) -> Path:
    """Keep the config, some rows of metrics.csv and a row for each evaluated lane, of the run folders of one cell.

    notes: what else config.json shall say.
    """
    opened = [load(path) for path in runs]
    config = {**opened[0].config, **notes, "training_seconds": round(sum(map(training_seconds, opened)))}
    for name in ("seeds", "probabilities", "limits", "lanes"):
        values = [value for run in opened for value in run.config[name]]
        config[name] = [value for place, value in enumerate(values) if value not in values[:place]]
    lane = list(opened[0].lanes[0].columns)
    metrics = [row for run in opened for row in _some_rows(run, lane)]
    evaluation = [row for run in opened for row in _evaluated(run, lane)]
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints.write_file(folder / "config.json", (json.dumps(config, indent=1) + "\n").encode())
    write_rows(folder / "metrics.csv", [*lane, *METRICS], metrics)
    if evaluation:
        write_rows(folder / "evaluation.csv", [*lane, *EVALUATION], evaluation)
    return folder


def training_seconds(run: Run) -> float:
    """Time that the iterations took, however often the run was stopped. Without compilation."""
    metrics = run.metrics
    iterations, place = np.unique(metrics["iteration"], return_index=True)
    steps = metrics["env_steps"].max() / max(1, iterations.max())
    return float(np.sum(len(run.lanes) * steps / np.maximum(1, metrics["steps_per_second"][place])))


def _some_rows(run: Run, lane: Sequence[str]) -> Iterable[list[str]]:
    """The rows as they stand in the file: of the first iteration, the last, and some between."""
    with open(run.path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    last = max(int(row["iteration"]) for row in rows)
    every = max(1, -(-last // POINTS))
    kept = {1, last, *range(every, last + 1, every)}
    return [[row[name] for name in (*lane, *METRICS)] for row in rows if int(row["iteration"]) in kept]


def _evaluated(run: Run, lane: Sequence[str]) -> Iterable[list[object]]:
    path = run.path / "evaluation-jax.json"
    if not path.exists():
        return []
    rows = json.loads(path.read_text())["per_lane"]
    return [[row[name] for name in (*lane, *EVALUATION)] for row in rows]


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    checkpoints.write_file(path, text.getvalue().encode())


@dataclass(frozen=True, eq=False)
class Found:
    """What is known about one setting: an algorithm on an environment at one limit and probability."""

    environment: str
    label: str
    probability: float
    limit: float
    folder: Path
    config: Json
    training: dict[str, np.ndarray]
    """Columns of metrics.csv, for this setting."""
    fresh: dict[str, np.ndarray]
    """Columns of evaluation.csv, for this setting; empty where there was none."""

    @property
    def seeds(self) -> int:
        return len(set(self.training["seed"].tolist()))

    def at_the_end(self, name: str) -> Float[np.ndarray, " seeds"]:
        """A column of metrics.csv for every seed, at its last row."""
        seeds = self.training["seed"]
        return np.array([self.training[name][seeds == seed][-1] for seed in sorted(set(seeds.tolist()))])

    def per_seed(self, name: str) -> Float[np.ndarray, " seeds"]:
        """Outage, episode_cost or episode_return of every seed: over fresh episodes, or the last of its training."""
        return self.fresh[FRESH[name]] if self.fresh else self.at_the_end(name)

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """Exact 95% interval of the outage over all seeds' fresh episodes."""
        if not self.fresh:
            return None
        return stats.outage_interval(int(self.fresh["outages"].sum()), int(self.fresh["episodes"].sum()))


def collect(folders: Iterable[Path]) -> list[Found]:
    """All settings under these folders, each with subfolders ENVIRONMENT/LABEL. The first that has a setting counts."""
    found: dict[tuple[str, str, float, float], Found] = {}
    for folder in folders:
        for path in sorted(folder.glob("*/*/metrics.csv")):
            for each in _settings(path.parent):
                found.setdefault((each.environment, each.label, each.probability, each.limit), each)
    return list(found.values())


def _settings(folder: Path) -> Iterable[Found]:
    config = load(folder).config
    lane = ("seed", "probability", "limit")
    training = read_columns(whole(folder / "metrics.csv"), (*lane, *METRICS))
    thin = (folder / "evaluation.csv").exists()
    fresh = read_columns(whole(folder / "evaluation.csv"), (*lane, *EVALUATION)) if thin else {}
    if fresh and (lost := _lanes(training) - _lanes(fresh)):
        raise UserError(f"{folder / 'evaluation.csv'} lacks {len(lost)} lanes of metrics.csv; evaluate them all")
    for probability, limit in dict.fromkeys(zip(training["probability"].tolist(), training["limit"].tolist())):
        chosen = [
            {
                name: column[(table["probability"] == probability) & (table["limit"] == limit)]
                for name, column in table.items()
            }
            for table in (training, fresh)
        ]
        yield Found(folder.parent.name, folder.name, probability, limit, folder, config, *chosen)


def whole(path: Path) -> Path:
    """The path of a thin table. It was written at once, so a last line without an end means that some of it is lost."""
    if not path.is_file() or not path.read_bytes().endswith(b"\n"):
        raise UserError(f"{path} is not whole; make the thin results again")
    return path


def _lanes(table: dict[str, np.ndarray]) -> set[tuple[float, ...]]:
    return set(zip(*(table[name].tolist() for name in ("seed", "probability", "limit"))))


def only(found: Iterable[Found], **wanted: object) -> list[Found]:
    """Those whose fields have these values."""
    return [each for each in found if all(getattr(each, name) == value for name, value in wanted.items())]


def one(found: Iterable[Found], **wanted: object) -> Found | None:
    chosen = only(found, **wanted)
    return chosen[0] if chosen else None


def missing(found: Sequence[Found], cells: Iterable[Cell]) -> list[str]:
    """Settings of a grid that nothing is known about."""
    return [
        f"{cell.environment} {cell.label} at {probability:g}"
        for cell in cells
        for probability in cell.probabilities
        if one(found, environment=cell.environment, label=cell.label, probability=probability) is None
    ]


def check_folder(folder: Path) -> Path:
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; give one that qcrl reproduce, or thin, has written")
    return folder
