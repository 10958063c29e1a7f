"""Sweeps: a grid of trainings, in groups that fit the device, on this machine or on a Ray cluster."""

import json
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qcrl.errors import UserError
from qcrl.kinds import Json
from qcrl.runs import checkpoints, shapes
from qcrl.sweeps import grid as grids
from qcrl.sweeps.display import Watch
from qcrl.sweeps.grid import Cell
from qcrl.sweeps.groups import Group, Outcome, finished, split

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Sweep:
    """The outcome: the groups of the grid, and what went wrong with those that failed."""

    path: Path
    groups: list[Group]
    failures: dict[str, str]
    """By group: an error in one sentence."""
    frozen: dict[str, list[str]]
    """By group: lanes that turned non-finite and were frozen."""

    def __repr__(self) -> str:
        return f"<Sweep {self.path}: {len(self.groups)} groups, {len(self.failures)} failed>"

    @property
    def pooled(self) -> list[tuple[str, Json]]:
        """Of every finished group its path and, setting by setting, what its evaluation says of all seeds together."""
        done = [group for group in self.groups if group.cell.episodes and finished(group, self.path / group.path)]
        names = [self.path / group.path / f"evaluation-{engine}.json" for group in done for engine in ("jax", "host")]
        files = [(str(file.parent.relative_to(self.path)), file) for file in names if file.exists()]
        return [(path, row) for path, file in files for row in json.loads(file.read_text())["pooled"]]


class Stopped(KeyboardInterrupt):
    """The sweep was asked to stop."""

    def __init__(self, out: Path, exit_code: int) -> None:
        super().__init__(f"stopped; the same command continues the sweep in {out}")
        self.exit_code = exit_code


def sweep(
    grid: str | Path | Mapping[str, object],
    out: str | Path,
    engine: str = "local",
    *,
    checkpoint_interval: float = 60.0,
    progress: bool = True,
    **options: Any,
) -> Sweep:
    """Train and evaluate every cell of a grid; what is finished already is skipped, what is not is resumed.

    grid: a TOML file, or its content as a dictionary.
    out: folder of the sweep; each cell's run folder is ENVIRONMENT/LABEL inside.
    engine: local, one group after the other, or ray, side by side on a cluster.
    checkpoint_interval: seconds between checkpoints.
    options: of the Ray engine: address, shared, cpus, gpus, retries (see qcrl.sweeps.ray_engine.run).
    """
    if engine not in ENGINES:
        raise UserError(f"there is no engine {engine!r}; the engines are {', '.join(ENGINES)}")
    if options and engine != "ray":
        raise UserError(f"{', '.join(options)} belongs to the Ray engine; leave it out, or use engine ray")
    out = Path(out)
    cells = grids.cells(dict(grid)) if isinstance(grid, Mapping) else grids.read_grid(grid)
    if engine == "ray":
        if options.get("address") is None:  # read when Ray is imported: a Ray for this machine listens to it alone
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        from qcrl.sweeps import ray_engine

        ray_engine.connect(options.pop("address", None))
        lanes_that_fit = ray_engine.lanes_that_fit(**options)
        runner = lambda groups: ray_engine.run(groups, out, checkpoint_interval, **options)
    else:
        from qcrl.sweeps import local, memory

        lanes_that_fit = memory.lanes_that_fit
        runner = lambda groups: local.run(groups, out, checkpoint_interval)
    groups = plan(cells, out, lanes_that_fit)
    return _run(groups, out, runner, progress)


def plan(cells: Sequence[Cell], out: Path, lanes_that_fit: Callable[[Cell], int]) -> list[Group]:
    """The grid's groups. How large they may be is settled once and kept, so that a restart finds the same ones."""
    path = out / "plan.json"
    try:
        kept = shapes.read_json(path, shapes.Plan, "remove it, or give another --out") if path.exists() else {}
        for cell in cells:
            if cell.path not in kept:
                (whole,) = split(cell, most=2**62)
                kept[cell.path] = cell.max_lanes or (1 if whole.lanes == 1 else lanes_that_fit(cell))
        out.mkdir(parents=True, exist_ok=True)
        checkpoints.write_file(path, (json.dumps(kept, indent=1) + "\n").encode())
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read or written ({error}); mend that, or give another --out") from error
    return [group for cell in cells for group in split(cell, kept[cell.path])]


def _run(groups: list[Group], out: Path, runner: Callable[[list[Group]], Iterable[Outcome]], progress: bool) -> Sweep:
    todo = [group for group in groups if finished(group, out / group.path) is None]
    failures: dict[str, str] = {}
    with Watch(groups, out, progress) as watch:
        lanes = sum(group.lanes for group in groups)
        watch.say(f"{len(groups)} groups of {lanes} lanes together, {len(groups) - len(todo)} of them done already")
        try:
            for group, error in runner(todo):
                if error is not None:
                    failures[group.path] = _explain(error, out / f"{group.path}.error.txt")
                watch.say(f"{group.path}: {'done' if error is None else f'failed: {failures[group.path]}'}")
        except KeyboardInterrupt as interrupt:
            raise Stopped(out, getattr(interrupt, "exit_code", 130)) from None
    frozen = {group.path: (finished(group, out / group.path) or {}).get("frozen", []) for group in groups}
    return Sweep(out, groups, failures, {path: lanes for path, lanes in frozen.items() if lanes})


def _explain(error: Exception, file: Path) -> str:
    """A user's mistake as it is; of anything else one line, and the rest in a file."""
    if isinstance(error, UserError):
        return str(error)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(traceback.format_exception(error)))
    return f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''} (see {file})"
