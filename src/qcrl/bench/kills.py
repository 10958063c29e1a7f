"""SIGKILL at random moments: trainings, sweeps, evaluate, certify, started again until they end. Is anything lost?"""

import argparse
import contextlib
import csv
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import NamedTuple

from qcrl.bench import count, print_row, print_table
from qcrl.bench.robustness import Main, zoo

SMALL = ["--num-envs", "2", "--steps-per-env", "40", "--hidden-sizes", "8", "--checkpoint-interval", "0"]
CHUNKS = ["--chunk-length", "10", "--minibatches", "1"]
STEPS = "3200"
PATIENCE = 600.0
"""Seconds that one start may take at most."""
GRID = """
environments = ["TwoPathEnv-v0"]
steps = 1600
episodes = 20
seeds = 2
max_lanes = 1
overrides = {num_envs = 2, steps_per_env = 40, hidden_sizes = [8]}
algorithms = ["cvar_pg"]
"""


IMPORTED = ("qcrl.training.loop", "qcrl.evaluation.promise", "qcrl.sweeps", "tensorboardX.event_file_writer")
"""What every start would import anew."""


class Series(NamedTuple):
    """A command, and what must be the same in the end, however often it was killed."""

    arguments: Callable[[Path], list[str]]
    result: Callable[[Path], object]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=count, default=100, help="over all series (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    parser.add_argument("--series", nargs="+", choices=SERIES, default=list(SERIES), help="(default: all)")


def run(args: argparse.Namespace) -> int:
    moments, bad = random.Random(args.seed), 0
    for module in IMPORTED:
        import_module(module)
    print_table(["series", "kills", "starts", "outcome"], [])
    for place, name in enumerate(args.series):
        kills = len(range(place, args.kills, len(args.series)))
        if kills:
            with tempfile.TemporaryDirectory(prefix="qcrl-", ignore_cleanup_errors=True) as folder:
                starts, outcome = endure(args.main, name, Path(folder), kills, moments, "fork")
            print_row([name, kills, starts, outcome])
            bad += outcome != SAME
    return 1 if bad else 0


SAME = "as without kills"


def endure(
    main: Main, name: str, folder: Path, kills: int, moments: random.Random, method: str = "spawn"
) -> tuple[int, str]:
    """How often a series was started, and what came of it. To fork is quicker, where JAX has not been used yet."""
    series = SERIES[name]
    (folder / "grid.toml").write_text(GRID)
    repeatable = name in ("evaluate", "certify")
    start = partial(_start, main, get_context(method), folder)
    if repeatable:
        for each in ("reference", "killed"):
            start(_train(folder / each, "ppo_lag", "TwoPathEnv-v0", "400", *CHUNKS))
    reference = start(series.arguments(folder / "reference"), at_work=folder / "reference" / "metrics.csv")
    if reference.code != 0:
        return 1, f"the reference failed: {reference.text}"
    seconds, worked, expected = reference.seconds, reference.worked, series.result(folder / "reference")
    done = starts = 0
    while True:
        starts += 1
        late = moments.random() < 0.7 and worked > 0  # most of them while it works: that it begins is soon seen
        share = moments.uniform(0.0 if late else 0.05, 1.0)
        wait = PATIENCE if done == kills else share * (worked if late else seconds)
        at_work = folder / "killed" / "metrics.csv" if late and done < kills else None
        begun = start(series.arguments(folder / "killed"), wait, at_work)
        if begun.code is None and done < kills:
            done += 1
        elif begun.code != 0:
            return starts, f"exit code {begun.code} after {done} kills: {begun.text}"
        elif done == kills:
            break
        else:  # it was faster than the kill: once more from the beginning
            seconds, worked = min(seconds, begun.seconds), min(worked, begun.worked or worked)
            if not repeatable:
                shutil.rmtree(folder / "killed")
    return starts, SAME if series.result(folder / "killed") == expected else "something else than without kills"


class Start(NamedTuple):
    """What came of one start."""

    code: int | None
    """No exit code where it was killed."""
    text: str
    """Its last words."""
    seconds: float
    worked: float
    """Seconds since it wrote for the first time to what was watched; 0 where it did not."""


def _start(
    main: Main,
    processes: BaseContext,
    folder: Path,
    arguments: Sequence[str],
    wait: float = PATIENCE,
    at_work: Path | None = None,
) -> Start:
    """Run a command; kill it after so many seconds, or so many seconds after it has written `at_work`."""
    written = lambda: at_work.stat().st_mtime_ns if at_work is not None and at_work.exists() else 0
    before, mark, errors = written(), 0.0, folder / "errors.txt"
    job = (main, list(arguments), errors, folder / "cache")
    process = processes.Process(target=_command, args=job)  # type: ignore[attr-defined]
    begun = now = time.monotonic()
    process.start()
    try:
        while process.exitcode is None:
            now = time.monotonic()
            mark = mark or (now if written() != before else 0.0)
            since = begun if at_work is None else mark
            if now - begun > PATIENCE or (since and now - since > wait):
                return Start(None, "", now - begun, 0.0)
            time.sleep(0.01)
    finally:
        if process.exitcode is None:
            with contextlib.suppress(ProcessLookupError):  # it has no group of its own yet
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.kill()
            process.join()
    text = errors.read_text(errors="replace").strip().splitlines() if errors.exists() else []
    return Start(process.exitcode, text[-1] if text else "", now - begun, now - mark if mark else 0.0)


def _command(main: Main, arguments: list[str], errors: Path, cache: Path) -> None:
    """One start, in a process group of its own."""
    os.setsid()
    os.environ["QCRL_CACHE"] = str(cache)
    for stream, place in ((1, os.devnull), (2, errors)):
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, stream)
        os.close(descriptor)
    sys.exit(main(arguments))


def _train(out: Path, algorithm: str, env: str, steps: str = STEPS, *more: str) -> list[str]:
    return ["train", algorithm, env, "--preset", "fast", *SMALL, "--steps", steps, "--resume", "--out", str(out), *more]


def _rows(run: Path) -> object:
    """Everything that a training writes, but its speed."""
    with open(run / "metrics.csv", newline="") as file:
        rows = [{k: v for k, v in row.items() if k != "steps_per_second"} for row in csv.DictReader(file)]
    policies = {path.name: path.read_bytes() for path in sorted((run / "policies").iterdir())}
    return rows, (run / "episodes.csv").read_bytes(), policies


def _iterations(run: Path) -> object:
    """A run in Python begins new episodes where it is resumed; its rows must be whole all the same."""
    with open(run / "metrics.csv", newline="") as file:
        return [(row["iteration"], row["env_steps"]) for row in csv.DictReader(file)]


def _swept(out: Path) -> object:
    return {str(path.parent.relative_to(out)): _rows(path.parent) for path in sorted(out.rglob("finished.json"))}


def _evaluated(run: Path) -> object:
    return (run / "evaluation-jax.csv").read_bytes(), _rows(run)


def _certified(run: Path) -> object:
    found = [json.loads(path.read_text()) for path in sorted(run.glob("certificate-*.json"))]
    return [(each["verdict"], each["policy_sha256"]) for each in found], _rows(run)


SERIES = {
    "train, device": Series(lambda out: _train(out, "ppo_lag", "TwoPathEnv-v0", STEPS, *CHUNKS), _rows),
    "train, Python": Series(lambda out: _train(out, "ppo_lag", f"{zoo.__name__}:Sound", STEPS, *CHUNKS), _iterations),
    "train, SAC": Series(lambda out: _train(out, "wcsac", "TwoPathEnv-v0", STEPS, "--replay-size", "2000"), _rows),
    "sweep": Series(lambda out: ["sweep", str(out.parent / "grid.toml"), "--out", str(out)], _swept),
    "sweep, Ray": Series(
        lambda out: ["sweep", str(out.parent / "grid.toml"), "--out", str(out), "--engine", "ray"], _swept
    ),
    "evaluate": Series(lambda run: ["evaluate", str(run), "--episodes", "20000"], _evaluated),
    "certify": Series(lambda run: ["certify", str(run), "--promise", "0.9", "--episodes", "20000"], _certified),
}
