"""SIGKILL at random moments: trainings, sweeps, evaluate, certify, started again until they end. Is anything lost?"""

import argparse
import csv
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from qcrl.bench import count, print_row, print_table
from qcrl.bench.robustness import zoo

SMALL = ["--num-envs", "2", "--steps-per-env", "40", "--hidden-sizes", "8", "--checkpoint-interval", "0"]
CHUNKS = ["--chunk-length", "10", "--minibatches", "1"]
STEPS = "6400"
PATIENCE = 600.0
"""Seconds that one start may take at most."""
GRID = """
environments = ["TwoPathEnv-v0"]
steps = 3200
episodes = 20
seeds = 2
max_lanes = 1
overrides = {num_envs = 2, steps_per_env = 40, hidden_sizes = [8], minibatches = 1}
algorithms = ["cvar_pg"]
"""


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
    print_table(["series", "kills", "starts", "outcome"], [])
    for place, name in enumerate(args.series):
        kills = len(range(place, args.kills, len(args.series)))
        if kills:
            with tempfile.TemporaryDirectory(prefix="qcrl-") as folder:
                starts, outcome = endure(name, Path(folder), kills, moments)
            print_row([name, kills, starts, outcome])
            bad += outcome != SAME
    return 1 if bad else 0


SAME = "as without kills"


def endure(name: str, folder: Path, kills: int, moments: random.Random) -> tuple[int, str]:
    """How often a series was started, and what came of it."""
    series = SERIES[name]
    (folder / "grid.toml").write_text(GRID)
    if name in ("evaluate", "certify"):
        for each in ("reference", "killed"):
            _start(_train(folder / each, "ppo_lag", "TwoPathEnv-v0", "400", *CHUNKS), PATIENCE)
    begun = time.monotonic()
    code, text = _start(series.arguments(folder / "reference"), PATIENCE)
    if code != 0:
        return 1, f"the reference failed: {text}"
    seconds, expected = time.monotonic() - begun, series.result(folder / "reference")
    done = starts = 0
    while True:
        starts += 1
        wait = moments.uniform(0.05, 1.0) * seconds if done < kills else PATIENCE
        code, text = _start(series.arguments(folder / "killed"), wait)
        if code is None and done < kills:
            done += 1
        elif code != 0:
            return starts, f"exit code {code} after {done} kills: {text}"
        elif done == kills:
            break
        elif name not in ("evaluate", "certify"):  # it was faster than the kill: once more from the beginning
            subprocess.run(["rm", "-rf", str(folder / "killed")], check=True)
    return starts, SAME if series.result(folder / "killed") == expected else "something else than without kills"


def _start(arguments: Sequence[str], wait: float) -> tuple[int | None, str]:
    """Exit code and last words; no code where it was killed after `wait` seconds."""
    command = [sys.executable, "-m", "qcrl.cli", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        text = process.communicate(timeout=wait)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, ""
    return process.returncode, (text.strip().splitlines() or [""])[-1]


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
