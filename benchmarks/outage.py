"""Outage-PPO's tables at full size: trains and evaluates their cells side by side, and prints them.

python benchmarks/outage.py --minutes 8 --jobs 4       # until all cells are done; then only prints
python benchmarks/outage.py --tables fast --lanes 1    # on two cores: every seed is a program of its own
python benchmarks/outage.py --steps-scale 0.002 --episodes-scale 0.01 --jobs 1 --out /tmp/rehearsal     # a rehearsal

Rows of finished seeds are kept in results/outage_ppo/tables.csv, and they are not trained again. No seed of these
tables was used to choose a setting.
"""

import argparse
import contextlib
import csv
import fcntl
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

TASKS = ("SimpleButtonEnv-v0", "DynamicEnv-v0", "GremlinEnv-v0", "DynamicButtonEnv-v0")
FRESH = 2000
"""Episodes a seed where 1 in 10 may be over the limit; ten times as many where it is 1 in 100 or less."""
COLUMNS = ("table", "algorithm", "preset", "inputs", "environment", "probability", "seed", "episodes")
MEASURED = ("outage", "mean_return", "mean_cost", "mean_cost_over", "seconds")


class Cell(NamedTuple):
    """Seeds that are trained as one program, or as several."""

    table: str
    algorithm: str
    preset: str
    environment: str
    probability: float
    seeds: int = 10
    first_seed: int = 20_000
    budget: bool | None = None
    """Show the budget and the time left, where that is not the algorithm's own choice."""

    @property
    def name(self) -> str:
        return f"{self.table}-{self.program}-p{self.probability}"

    @property
    def program(self) -> str:
        """What cells have in common that can be trained as one program: all but seeds and probabilities."""
        inputs = "" if self.budget is None else "-budget"
        return f"{self.algorithm}{inputs}-{self.preset}-{self.environment}"

    @property
    def episodes(self) -> int:
        return FRESH if self.probability >= 0.05 else 10 * FRESH


def cells() -> Iterator[Cell]:
    """In the order of what they are worth."""
    for probability, task in itertools.product((0.1, 0.01), TASKS):
        yield Cell("scale", "outage_ppo", "scale", task, probability)
    for task in TASKS:
        yield Cell("fast", "outage_ppo", "fast", task, 0.1)
    for probability, task in itertools.product((0.1, 0.2), TASKS):
        yield Cell("tuned", "outage_ppo", "tuned", task, probability)
        yield Cell("tuned", "qcpo", "tuned", task, probability)
    for task in ("DynamicEnv-v0", "DynamicButtonEnv-v0"):
        yield Cell("small", "outage_ppo", "scale", task, 0.001, seeds=5)
    for task in TASKS:
        yield Cell("scale", "qcpo", "scale", task, 0.1, seeds=5)
        yield Cell("scale", "ppo_lag", "scale", task, 0.1, seeds=5)
        yield Cell("scale", "qcpo", "scale", task, 0.01, seeds=5)
    for preset, task in itertools.product(("tuned", "scale"), TASKS):
        yield Cell(preset, "qcpo", preset, task, 0.1, seeds=10 if preset == "tuned" else 5, budget=True)
    yield Cell("gremlin", "qcpo", "tuned", "GremlinEnv-v0", 0.1, first_seed=20_010)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/outage_ppo"), help="folder of tables.csv")
    parser.add_argument("--runs", type=Path, default=Path("runs/outage"), help="folder of the run folders")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long, saved")
    parser.add_argument("--jobs", type=int, default=2, help="cells side by side")
    parser.add_argument("--tables", nargs="+", help="only these (default: all)")
    parser.add_argument("--match", default="", help="only cells whose name has this regular expression in it")
    parser.add_argument("--lanes", type=int, default=10, help="seeds that are trained as one program")
    parser.add_argument("--steps-scale", type=float, default=1.0, help="share of each preset's own length")
    parser.add_argument("--episodes-scale", type=float, default=1.0, help="share of the fresh episodes")
    parser.add_argument(
        "--candidates", type=int, help="of so many last policies the best is kept (default: the preset)"
    )
    parser.add_argument("--cells", nargs="+", help="train and evaluate seeds of these, and write their rows to --runs")
    parser.add_argument("--seeds", type=int, nargs="+", help="which ones")
    args = parser.parse_args()
    asked = [cell for cell in cells() if not args.tables or cell.table in args.tables]
    asked = [cell for cell in asked if re.search(args.match, cell.name)]
    if args.cells:
        return train_and_evaluate([cell for cell in asked if cell.name in args.cells], args)
    path = args.out / "tables.csv"
    run_side_by_side(missing(asked, path, args.lanes), path, args)
    tell(read(path), asked)
    return 1 if missing(asked, path, args.lanes) else 0


Program = tuple[list[Cell], list[int]]
"""Cells that differ in their probabilities alone, and their seeds."""


def missing(asked: list[Cell], path: Path, lanes: int) -> list[Program]:
    """What is not in the table, as programs of so many seeds; the first seeds of all cells come first."""
    done = {(row["cell"], int(row["seed"])) for row in read(path)}
    alike: dict[tuple[str, int, tuple[int, ...]], list[Cell]] = {}
    for cell in asked:
        seeds = range(cell.first_seed, cell.first_seed + cell.seeds)
        left = [seed for seed in seeds if (cell.name, seed) not in done]
        for place in range(0, len(left), lanes):
            alike.setdefault((cell.program, place, tuple(left[place : place + lanes])), []).append(cell)
    programs = sorted(alike.items(), key=lambda each: each[0][1])
    return [(cells, list(seeds)) for (_, _, seeds), cells in programs]


def name_of(cells: list[Cell], seeds: list[int]) -> str:
    """Of a run folder."""
    probabilities = "-".join(f"p{cell.probability}" for cell in cells)
    return f"{cells[0].program}-{probabilities}-s{seeds[0]}-{len(seeds)}"


def run_side_by_side(todo: list[Program], path: Path, args: argparse.Namespace) -> None:
    """Each program in a process of its own: one compiles while another trains."""
    options = ["--runs", str(args.runs), "--steps-scale", str(args.steps_scale)]
    options += ["--episodes-scale", str(args.episodes_scale)]
    options += [] if args.candidates is None else ["--candidates", str(args.candidates)]
    commands = {
        name_of(*each): [
            *(sys.executable, __file__, "--cells", *(cell.name for cell in each[0])),
            *("--seeds", *map(str, each[1]), *options),
        ]
        for each in todo
    }

    def keep(name: str, code: int) -> None:
        print(f"{name}: exit code {code}", flush=True)
        append(path, read(args.runs / f"{name}.csv") if code == 0 else [])

    side_by_side(commands, args.jobs, args.minutes, keep)


def side_by_side(
    commands: dict[str, list[str]], jobs: int, minutes: float, keep: Callable[[str, int], None], patience: float = 60.0
) -> None:
    """Runs so many commands at a time, for so long, and hands on the name and exit code of each that ends.

    What still runs then is stopped, with all that it has started; trainings save themselves within `patience` seconds.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C does, so that those it has started are stopped as well
        signal.signal(number, lambda *_: sys.exit(143))
    end, todo, running = time.monotonic() + 60 * minutes, list(commands), {}
    share = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        while (todo or running) and time.monotonic() < end:
            while todo and len(running) < jobs:
                name = todo.pop(0)
                running[subprocess.Popen(commands[name], env=share, start_new_session=True)] = name
            time.sleep(0.5)
            for process, name in list(running.items()):
                if process.poll() is not None:
                    del running[process]
                    keep(name, process.returncode)
    finally:
        for process in running:
            tell_all(process, signal.SIGTERM)
        for process in running:
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                tell_all(process, signal.SIGKILL)


def tell_all(process: subprocess.Popen, number: int) -> None:
    """A process and those it has started, unless they have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def train_and_evaluate(cells: list[Cell], args: argparse.Namespace) -> int:
    import qcrl
    from qcrl.algos.find import algorithms

    begun, name, first = time.monotonic(), name_of(cells, args.seeds), cells[0]
    steps = max(1, round(args.steps_scale * algorithms()[first.algorithm].lengths[first.preset]))
    asked = {"budget_input": first.budget, "candidates": args.candidates}
    more = {field: value for field, value in asked.items() if value is not None}
    run = qcrl.train(
        first.algorithm,
        first.environment,
        [qcrl.Outage(15, cell.probability) for cell in cells],
        steps,
        args.seeds,
        first.preset,
        args.runs / name,
        progress=False,
        resume=True,
        **more,
    )
    inputs = "budget" if run.config["algorithm"]["fields"]["budget_input"] else "plain"
    rows = []
    for cell in cells:
        episodes = max(10, round(args.episodes_scale * cell.episodes))
        asked = {"probability": cell.probability} if len(cells) > 1 else {}
        found = qcrl.evaluate(run, episodes, progress=False, **asked)
        rows += [
            {"cell": cell.name, **dict(zip(COLUMNS, (*cell[:3], inputs, *cell[3:5], row.seed, episodes)))}
            | {each: getattr(row, each) for each in MEASURED[:-1]}
            | {"seconds": round(time.monotonic() - begun, 1)}
            for row in found.per_lane
        ]
    path = args.runs / f"{name}.csv"
    path.unlink(missing_ok=True)  # of a table that was stopped before these rows were in it
    append(path, rows)
    return 0


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, rows: list[dict], columns: Sequence[str] = ("cell", *COLUMNS, *MEASURED)) -> None:
    """Several programs may do so at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known, fresh = read(path), path.with_suffix(".new")
        with open(fresh, "w", newline="") as file:
            table = csv.DictWriter(file, columns, lineterminator="\n")
            table.writeheader()
            table.writerows([*known, *rows])
        fresh.replace(path)


def tell(rows: list[dict[str, str]], asked: list[Cell]) -> None:
    """Means over seeds, with their spread, and how many seeds are over what was asked for."""
    print("| table | algorithm | preset | task | asked | seeds | outage | std | over | return | std | cost if over |")
    print("|---" * 12 + "|")
    for cell in asked:
        own = [row for row in rows if row["cell"] == cell.name]
        if own:
            outage, reward = (np.array([float(row[name]) for row in own]) for name in ("outage", "mean_return"))
            worst = [float(row["mean_cost_over"]) for row in own if row["mean_cost_over"]]
            over = int(np.sum(outage > cell.probability))
            task = cell.environment.removesuffix("Env-v0")
            name = cell.algorithm if cell.budget is None else f"{cell.algorithm} with budget and time"
            cost = f"{np.mean(worst):.1f}" if worst else "none"
            spread = [f"{np.std(each, ddof=1):.3g}" if len(own) > 1 else "" for each in (outage, reward)]
            print(
                f"| {cell.table} | {name} | {cell.preset} | {task} | {cell.probability} | {len(own)} | "
                f"{outage.mean():.4f} | {spread[0]} | {over} | {reward.mean():.2f} | {spread[1]} | {cost} |"
            )
    lacking = [cell.name for cell in asked if sum(row["cell"] == cell.name for row in rows) < cell.seeds]
    print(json.dumps({"missing": lacking}))


if __name__ == "__main__":
    sys.exit(main())
