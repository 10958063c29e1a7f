"""One command per figure of the paper: train its grid, evaluate on fresh episodes, draw, tabulate, judge its claims."""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from qcrl.errors import UserError, check_name

if TYPE_CHECKING:
    from qcrl.reproduce.writing import Reproduction

FIGURES = {"main": "main", "epsilon": "epsilon", "weibull": "weibull", "two-path": "two_path", "tail": "tail"}
"""Name of each figure, and of its file here."""


def reproduce(
    figure: str,
    scale: float = 1.0,
    out: str | Path = "reproduced",
    source: str | Path | None = None,
    *,
    engine: str = "local",
    progress: bool = True,
    **options: Any,
) -> "Reproduction":
    """Make FIGURE.png, FIGURE.csv and FIGURE.md in `out`.

    figure: main, epsilon, weibull, two-path or tail.
    scale: share of the paper's steps and episodes; below 1 also fewer seeds and environments, below .1 a small network.
    source: folder of results to draw from, without any training.
    engine, options: how the grid is trained, as in qcrl.sweep.
    """
    check_name("figure", figure, FIGURES)
    if not 0 < scale <= 1:
        raise UserError(f"scale is {scale}, but must be above 0 and at most 1; 0.01 takes minutes on two cores")
    module = import_module(f"qcrl.reproduce.{FIGURES[figure]}")
    out = Path(out)
    failures = {}
    if source is None:
        failures = _train(figure, module, scale, out, engine=engine, progress=progress, **options)
    from qcrl.reproduce.writing import write

    return write(figure, module, Path(source) if source is not None else out, out, failures)


def _train(figure: str, module: ModuleType, scale: float, out: Path, **options: Any) -> dict[str, str]:
    """Every cell of the grid that there is an algorithm for, and thin results of those that got far enough."""
    from qcrl.reproduce.results import thin  # not above: --help need not wait for JAX
    from qcrl.reproduce.scale import scaled
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
