"""The run folder, as others read it: config.json, metrics.csv, episodes.csv and policies/."""

import csv
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qcrl.errors import UserError
from qcrl.kinds import Json
from qcrl.runs import checkpoints
from qcrl.runs.lane import Lane, from_dict, from_earlier_version

if TYPE_CHECKING:
    from qcrl.runs.jax_policy import JaxPolicy
    from qcrl.runs.policy import Policy

FORMAT = 2
"""Of config.json and of what lies beside it. Of runs in another one, only tables and curves can be read."""


Pick = float | None
"""The value that the lane meant has; None where it may be left out."""


@dataclass(frozen=True)
class Run:
    """A run folder."""

    path: Path

    @cached_property
    def config(self) -> Json:
        """What was trained, on what, under which constraint: the content of config.json."""
        return read_config(self.path)

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """Seeds x probabilities x limits, in the order in which they are trained."""
        return lanes_of(self.config)

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

    def lane(self, seed: Pick = None, probability: Pick = None, limit: Pick = None, learning_rate: Pick = None) -> Lane:
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
        return next(lane for lane in self.lanes if chosen.items() <= lane.columns.items())

    def policy(
        self,
        seed: Pick = None,
        probability: Pick = None,
        limit: Pick = None,
        learning_rate: Pick = None,
        backend: str = "jax",
    ) -> "Policy":
        """The trained policy of one lane, NumPy in and NumPy out; backend is jax, or numpy for quick single calls."""
        from qcrl.runs.policy import Policy  # not above: to read tables, no policy is needed

        lane = self.lane(seed, probability, limit, learning_rate)
        if backend == "jax":
            return self.policy_of(lane)
        check_format(self.path, self.config)
        return Policy.load(self.policy_file(lane), backend)

    def policy_of(self, lane: Lane) -> "JaxPolicy":
        """The trained policy of a lane, with its algorithm."""
        return self.policy_in(self.policy_file(lane), lane)

    def policy_in(self, path: Path, lane: Lane) -> "JaxPolicy":
        """The policy in a file of this run, which must be one of this lane."""
        from qcrl.runs.jax_policy import load  # not above: to read tables, no algorithm is needed

        check_format(self.path, self.config)
        policy = load(path)
        policy.require_home(self.config, lane)
        return policy


def load(path: str | Path) -> Run:
    """Open a run folder."""
    run = Run(Path(path))
    run.config  # noqa: B018 - a folder that holds no run fails here, not at first use
    return run


def read_config(folder: Path) -> Json:
    try:
        config = json.loads((folder / "config.json").read_text())
        if "lanes" not in config:
            raise ValueError("it does not describe a run")
        return config
    except FileNotFoundError:
        raise UserError(f"there is no run in {folder}: it has no config.json; give the folder of a run") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'config.json'} cannot be read ({error}); give the folder of a run") from None


def lanes_of(config: Json) -> tuple[Lane, ...]:
    """The lanes that a config describes, those of earlier versions included."""
    kind = config.get("constraint", "Outage")
    return tuple(
        from_dict(each) if isinstance(each, dict) else from_earlier_version(each, kind) for each in config["lanes"]
    )


def check_format(folder: Path, config: Json) -> None:
    """Raise where a run is of an earlier version, whose policies and checkpoints cannot be read."""
    if config.get("format") != FORMAT:
        raise UserError(
            f"{folder} was trained by an earlier version of qcrl: its curves can be shown, but its policies can be "
            "neither run nor trained further; train it again in another folder"
        )


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
