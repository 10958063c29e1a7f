"""The unit of a sweep: a group of lanes that one program trains, its run folder, and how far it has got."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from qcrl.algos import hyperparameters
from qcrl.constraints import Constraint, Together
from qcrl.errors import UserError
from qcrl.kinds import Json
from qcrl.runs import checkpoints, shapes
from qcrl.sweeps.grid import Cell

FINISHED = "finished.json"
"""Written into a run folder once its group is trained and evaluated."""


@dataclass(frozen=True)
class Group:
    """Lanes that are trained together: seeds x learning rates x constraints of one cell."""

    cell: Cell
    path: str
    """Run folder within the sweep's folder."""
    seeds: tuple[int, ...]
    rates: tuple[float, ...]
    constraints: tuple[Constraint | Together, ...]

    @property
    def lanes(self) -> int:
        return len(self.seeds) * max(1, len(self.rates)) * len(self.constraints)

    @property
    def work(self) -> int:
        """Environment steps over all lanes."""
        return self.lanes * self.cell.steps


Outcome = tuple[Group, Exception | None]
"""A group that has ended, and what went wrong."""


def split(cell: Cell, most: int) -> list[Group]:
    """The cell's groups of at most `most` lanes: halves of its seeds, and only then of its other settings."""
    seeds = tuple(range(cell.first_seed, cell.first_seed + cell.seeds))
    parts: list[tuple[tuple, ...]] = [(seeds, cell.learning_rates, tuple(cell.asked))]
    while (largest := max(parts, key=_lanes)) and _lanes(largest) > max(1, most):
        place = parts.index(largest)
        axis = next(axis for axis, values in enumerate(largest) if len(values) > 1)
        half = -(-len(largest[axis]) // 2)
        halves = (largest[axis][:half], largest[axis][half:])
        parts[place : place + 1] = [(*largest[:axis], values, *largest[axis + 1 :]) for values in halves]
    names = [""] if len(parts) == 1 else [f"/part{number}" for number in range(1, len(parts) + 1)]
    return [Group(cell, f"{cell.path}{name}", *part) for name, part in zip(names, parts)]


def _lanes(part: tuple[tuple, ...]) -> int:
    return len(part[0]) * max(1, len(part[1])) * len(part[2])


def run_group(group: Group, folder: Path, checkpoint_interval: float) -> None:
    """Train the group from where its folder is, evaluate its policies on the same device, and mark it as finished."""
    from qcrl.evaluation.evaluate import evaluate
    from qcrl.training.loop import train

    started = time.time()
    cell = group.cell
    rates = {"learning_rate": list(group.rates)} if group.rates else {}
    run = train(
        cell.name,
        cell.environment,
        list(group.constraints),
        steps=cell.steps,
        seeds=group.seeds,
        preset=cell.preset or None,
        out=folder,
        resume=True,
        cost=cell.cost or None,
        checkpoint_interval=checkpoint_interval,
        progress=False,
        **{**cell.overrides, **rates},
    )
    if cell.episodes:
        evaluate(run, cell.episodes, progress=False)
    done = {
        "settings": _settings(group),
        "steps": cell.steps,
        "episodes": cell.episodes,
        "seconds": round(time.time() - started, 1),
        "device": run.config["setup"]["device"],
        "frozen": [str(lane) for lane in run.frozen],
    }
    checkpoints.write_file(folder / FINISHED, (json.dumps(done, indent=1) + "\n").encode())


def finished(group: Group, folder: Path) -> Json | None:
    """What was written when the group was finished; None where it was not with these settings, steps and episodes."""
    try:
        done = shapes.read_json(folder / FINISHED, shapes.Finished, "it is made again")
    except (OSError, UserError):
        return None
    enough = done["steps"] >= group.cell.steps and done["episodes"] >= group.cell.episodes
    return done if enough and done["settings"] == _settings(group) else None


def _settings(group: Group) -> Json:
    """The hyper-parameters that are asked for, as JSON gives them back. A preset may change between versions."""
    return json.loads(json.dumps(hyperparameters.to_json(group.cell.algorithm)))


def progress(group: Group, folder: Path) -> float:
    """Share of the group's steps that its metrics.csv has rows of."""
    try:
        with open(folder / "metrics.csv", "rb") as file:
            header = file.readline().split(b",")
            file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - 4096))
            row = file.read().splitlines()[-2].split(b",")
            return min(1.0, int(row[header.index(b"env_steps")]) / group.cell.steps)
    except (OSError, ValueError, IndexError):
        return 0.0
