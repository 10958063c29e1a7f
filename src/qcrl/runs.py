"""The run folder, as others read it: config.json, metrics.csv, episodes.csv and policies/."""

import csv
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from qcrl import checkpoints
from qcrl.errors import UserError
from qcrl.policy import Policy


class Lane(NamedTuple):
    """One of the trainings that a run does side by side."""

    seed: int
    probability: float
    limit: float

    def __str__(self) -> str:
        return f"seed{self.seed}-p{self.probability:g}-d{self.limit:g}"

    @property
    def learning_rate(self) -> float | None:
        """Only where lanes of a run differ in it."""
        return None


class RatedLane(NamedTuple):
    """A lane of a run whose lanes differ in their learning rate as well."""

    seed: int
    probability: float
    limit: float
    learning_rate: float

    def __str__(self) -> str:
        return f"{Lane(*self[:3])}-lr{self.learning_rate:g}"


def make_lane(*values: Any) -> Lane:
    """The lane with these values; a fourth is its learning rate."""
    return Lane(*values) if len(values) == 3 else cast(Lane, RatedLane(*values))


@dataclass(frozen=True)
class Run:
    """A run folder."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """What was trained, on what, under which constraint: the content of config.json."""
        return read_config(self.path)

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """Seeds x probabilities x limits, in the order in which they are trained."""
        return tuple(make_lane(*lane) for lane in self.config["lanes"])

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """The columns of metrics.csv: one row per lane and iteration."""
        return read_columns(self.path / "metrics.csv")

    @property
    def episodes(self) -> dict[str, np.ndarray]:
        """The columns of episodes.csv: one row per finished training episode."""
        return read_columns(self.path / "episodes.csv")

    @property
    def frozen(self) -> tuple[Lane, ...]:
        """Lanes whose training turned non-finite. Their policies are the last good ones."""
        return tuple(lane for lane in self.lanes if not checkpoints.read_info(self.policy_file(lane))["alive"])

    def policy_file(self, lane: Lane) -> Path:
        path = self.path / "policies" / f"{lane}.safetensors"
        if not path.exists():
            raise UserError(
                f"{self.path} holds no policy for {lane}; train it for at least one checkpoint, or give the run that "
                "these results were taken from"
            )
        return path

    def lane(
        self,
        seed: int | None = None,
        probability: float | None = None,
        limit: float | None = None,
        learning_rate: float | None = None,
    ) -> Lane:
        """The one lane meant. The seed defaults to the first; the others may be left out where there is one."""
        wanted = {
            "seed": self.lanes[0].seed if seed is None else seed,
            "probability": probability,
            "limit": limit,
            "learning_rate": learning_rate,
        }
        for name, value in wanted.items():
            known = sorted({getattr(lane, name) for lane in self.lanes} - {None})
            if value is None and len(known) > 1:
                raise UserError(f"{self.path} was trained with {name} {_listing(known)}; say which one")
            if value is not None and value not in known:
                raise UserError(f"{self.path} has no {name} {value}; it was trained with {_listing(known)}")
        chosen = {name: value for name, value in wanted.items() if value is not None}
        return next(lane for lane in self.lanes if chosen.items() <= lane._asdict().items())

    def policy(
        self,
        seed: int | None = None,
        probability: float | None = None,
        limit: float | None = None,
        learning_rate: float | None = None,
    ) -> Policy:
        """The trained policy of one lane, NumPy in and NumPy out."""
        return Policy.load(self.policy_file(self.lane(seed, probability, limit, learning_rate)))


def load(path: str | Path) -> Run:
    """Open a run folder."""
    run = Run(Path(path))
    run.config  # noqa: B018 - a folder that holds no run fails here, not at first use
    return run


def read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "config.json").read_text())
        if "lanes" not in config:
            raise ValueError("it does not describe a run")
        return config
    except FileNotFoundError:
        raise UserError(f"there is no run in {folder}: it has no config.json; give the folder of a run") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'config.json'} cannot be read ({error}); give the folder of a run") from None


def read_columns(path: Path) -> dict[str, np.ndarray]:
    try:
        with open(path, newline="") as file:
            rows = csv.reader(file)
            names = next(rows)
            table = np.array([row for row in rows if len(row) == len(names)], dtype=float)
    except (OSError, StopIteration):
        raise UserError(f"{path} cannot be read; give the folder of a run that has trained") from None
    columns = table.T if table.size else np.empty((len(names), 0))
    return {
        name: column.astype(int) if name in ("seed", "iteration", "env_steps") else column
        for name, column in zip(names, columns)
    }


def _listing(values: list[Any]) -> str:
    return ", ".join(f"{value:g}" for value in values)
