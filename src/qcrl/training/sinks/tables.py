"""What a run writes while it trains: rows in metrics.csv and episodes.csv, and live curves."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from qcrl.errors import UserError
from qcrl.runs.checkpoints import sync
from qcrl.runs.lane import Lane
from qcrl.sampling.record import Episodes

LEADING = (
    "iteration",
    "env_steps",
    "episode_return",
    "episode_cost",
    "cost_quantile",
    "outage",
    "multiplier",
)
"""Columns of metrics.csv after seed, probability and limit; then steps_per_second and the algorithm's own."""
EPISODE_COLUMNS = ("env_steps", "return", "cost")
"""Columns of episodes.csv after seed, probability and limit; then one for each cost where there are several."""
CURVE_POINTS = 1000
"""About how many points of a run go to TensorBoard and W&B; metrics.csv has them all."""


class Tables:
    """Appends to a run's files, and cuts them back to where a checkpoint left them."""

    def __init__(
        self,
        folder: Path,
        lanes: Sequence[Lane],
        scalars: Iterable[str],
        sizes: dict[str, int],
        iterations: int,
        costs: Sequence[str] = ("cost",),
    ) -> None:
        """`sizes` are the file sizes at the checkpoint that training continues from; empty at the start."""
        self.folder = folder
        self.lanes = lanes
        self.kinds = [costs.index(lanes[0].constraint.cost), *(range(len(costs)) if len(costs) > 1 else ())]
        self.prefixes = [",".join(map(str, lane.columns.values())) for lane in lanes]
        own = sorted(set(scalars) - set(LEADING) - {"alive"})
        self.columns = (*LEADING, "steps_per_second", *own)
        self.every = max(1, iterations // CURVE_POINTS)
        self.curves: list[Any] = []
        each = [f"cost_{name}" for name in costs if len(costs) > 1]
        headers = {
            folder / "metrics.csv": (*lanes[0].columns, *self.columns),
            folder / "episodes.csv": (*lanes[0].columns, *EPISODE_COLUMNS, *each),
        }
        events = [*folder.glob("events.out.*")]
        for path in (*headers, *events):  # all of them, before any is touched
            _check(path, sizes.get(path.name, 0), headers.get(path, ()))
        self.metrics, self.episodes = (_reopen(path, sizes.get(path.name, 0), headers[path]) for path in headers)
        for path in events:
            if path.name in sizes:
                os.truncate(path, sizes[path.name])
            else:
                path.unlink()

    def log(self, scalars: dict[str, np.ndarray], episodes: Episodes, steps_per_second: float) -> None:
        """One iteration of all lanes; frozen ones have no rows."""
        table = {**scalars, "steps_per_second": np.full(len(self.lanes), round(steps_per_second))}
        alive = np.flatnonzero(scalars["alive"]).tolist()
        # str of a NumPy scalar is the shortest text that gives it back.
        _append(
            self.metrics,
            (",".join([self.prefixes[i], *(str(table[n][i]) for n in self.columns)]) for i in alive),
        )
        for i in alive:
            ended = episodes.finished[i]
            costs = (episodes.cost[i, ended, kind] for kind in self.kinds)
            columns = (episodes.env_steps[i, ended], episodes.return_[i, ended], *costs)
            # Host environments sum in double precision, and their sums are written exactly.
            text = repr if episodes.cost.dtype == np.float64 else "{:.8g}".format
            values = zip(*(column.tolist() for column in columns))
            rows = (",".join([self.prefixes[i], str(steps), *map(text, sums)]) for steps, *sums in values)
            _append(self.episodes, rows)
        for i in alive if self.curves else ():
            if scalars["iteration"][i] % self.every == 0:
                points = {f"{name}/{self.lanes[i]}": float(table[name][i]) for name in self.columns[2:]}
                for curves in self.curves:
                    curves.log(int(scalars["env_steps"][i]), points)

    def sync(self) -> dict[str, int]:
        """Force everything onto the disk; the sizes of all files then."""
        for curves in self.curves:
            curves.flush()
        paths = [self.folder / name for name in ("metrics.csv", "episodes.csv")] + [*self.folder.glob("events.out.*")]
        for path in paths:
            sync(path)
        return {path.name: path.stat().st_size for path in paths}

    def close(self) -> None:
        self.metrics.close()
        self.episodes.close()
        for curves in self.curves:
            curves.close()


def _check(path: Path, size: int, header: Sequence[str]) -> None:
    """Raise where a file is not what a checkpoint left."""
    found = path.stat().st_size if path.exists() else 0
    if found < size:
        raise UserError(f"{path} is shorter than at its last checkpoint, so it was changed since; restore it to resume")
    if size and header:
        with open(path, "rb") as old:
            if old.readline().rstrip(b"\n") != ",".join(header).encode():
                raise UserError(
                    f"{path} has other columns than this version of qcrl writes; resume it with its own version"
                )


def _reopen(path: Path, size: int, header: Sequence[str]) -> IO[bytes]:
    path.touch()
    os.truncate(path, size)
    file = open(path, "ab", buffering=0)  # noqa: SIM115 - unbuffered: a kill loses no finished row
    if size == 0:
        _append(file, [",".join(header)])
    return file


def _append(file: IO[bytes], rows: Iterable[str]) -> None:
    data = memoryview("".join(f"{row}\n" for row in rows).encode())
    while data:  # a write to a nearly full disk may take only a part; the next attempt then says why
        data = data[file.write(data) :]
