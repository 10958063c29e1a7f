"""One command per figure of the paper: train its grid, evaluate on fresh episodes, draw, tabulate, judge its claims."""

import math
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from qcrl import hyperparameters
from qcrl.algos import PRESETS
from qcrl.errors import UserError

FIGURES = {"main": "main", "epsilon": "epsilon", "weibull": "weibull", "two-path": "two_path", "tail": "tail"}
"""Name of each figure, and of its file here."""
PAPER_STEPS, PAPER_HOURS = 5_000_000, 9
"""Of one training on the paper's server; the paper says 8 to 10 hours."""
SMALL_SCALE = 0.1
"""Below this, the network and the batches are those of the fast preset."""
SIZES = ("hidden_sizes", "lstm_size", "batch_size", "steps_per_update", "replay_size")


class Reproduction(NamedTuple):
    """What was made, and what went wrong on the way."""

    figure: Path
    table: Path
    text: Path
    failures: dict[str, str]
    missing: list[str]


def reproduce(
    figure: str,
    scale: float = 1.0,
    out: str | Path = "reproduced",
    source: str | Path | None = None,
    *,
    engine: str = "local",
    progress: bool = True,
    **options: Any,
) -> Reproduction:
    """Make FIGURE.png, FIGURE.csv and FIGURE.md in `out`.

    figure: main, epsilon, weibull, two-path or tail.
    scale: share of the paper's steps and episodes; below 1 also fewer seeds and environments, below .1 a small network.
    source: folder of results to draw from, without any training.
    engine, options: how the grid is trained, as in qcrl.sweep.
    """
    hyperparameters.check_name("figure", figure, FIGURES)
    if not 0 < scale <= 1:
        raise UserError(f"scale is {scale}, but must be above 0 and at most 1; 0.01 takes minutes on two cores")
    module: Any = import_module(f"qcrl.reproduce.{FIGURES[figure]}")
    out = Path(out)
    failures = {}
    if source is None:
        failures = _train(figure, module, scale, out, engine=engine, progress=progress, **options)
    from qcrl.reproduce.writing import write

    return write(figure, module, Path(source) if source is not None else out, out, failures)


def _train(figure: str, module: Any, scale: float, out: Path, **options: Any) -> dict[str, str]:
    """Every cell of the grid that there is an algorithm for, and thin results of those that got far enough."""
    from qcrl.reproduce.results import thin
    from qcrl.sweeps import sweep

    result = sweep(scaled(module, scale), out / figure / "runs", **options)
    cells: dict[str, list[Path]] = {}
    for group in result.groups:
        if group.path not in result.failures:
            cells.setdefault(group.cell.path, []).append(result.path / group.path)
    for cell, runs in cells.items():
        folder = thin(runs, out / figure / cell, scale=scale)
        if hasattr(module, "measure") and not _newer(folder / "tail.csv", runs):
            module.measure(runs, folder, scale)
    return result.failures


def _newer(path: Path, runs: list[Path]) -> bool:
    """Whether the file was made after these runs were finished."""
    ends = [(run / "config.json").stat().st_mtime for run in runs]
    return path.exists() and path.stat().st_mtime > max(ends)


def scaled(module: Any, scale: float) -> dict[str, Any]:
    """The figure's grid, smaller."""
    grid: dict[str, Any] = dict(module.GRID)
    entries: list[dict[str, Any]] = [
        {"name": each} if isinstance(each, str) else dict(each) for each in grid["algorithms"]
    ]
    if scale < 1:
        least = {"steps": 1, "seeds": 3, "episodes": 20} | getattr(module, "LEAST", {})
        full = {"episodes": 1000} | grid
        grid |= {name: max(floor, round(full[name] * scale)) for name, floor in least.items()}
        for entry in entries:
            entry["overrides"] = smaller(entry["name"], entry.get("preset", grid["preset"]), scale)
    return {**grid, "algorithms": entries}


def smaller(algorithm: str, preset: str, scale: float) -> dict[str, Any]:
    """Overrides that fit a small scale: fewer environments, so that there are still many iterations."""
    settings, fast = PRESETS[algorithm][preset], PRESETS[algorithm]["fast"]
    changes: dict[str, Any] = {}
    if hasattr(settings, "steps_per_env"):
        changes["num_envs"] = max(2, round(settings.num_envs * math.sqrt(scale)))
    if scale < SMALL_SCALE:
        changes |= {name: getattr(fast, name) for name in SIZES if hasattr(settings, name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in changes.items()}
