"""Whether promises are kept: independent calls of `qcrl train --promise`, beside trainings to the promise itself.

The calls share one compiled program, each with a seed of its own; on a CPU `--lanes 1` is faster, a program for each.
Each is calibrated and certified for itself. It may be stopped at any time, also by --minutes, and goes on where it was
when it is run again.
"""

import argparse
import csv
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from types import FrameType
from typing import get_type_hints

import numpy as np

from qcrl.bench import add_changes, changes, count, hardware, print_table
from qcrl.constraints import Outage, exceeds
from qcrl.envs import make
from qcrl.evaluation.aim import afforded, aimed_by, target
from qcrl.evaluation.evaluate import Player, results_of, trained_environment
from qcrl.evaluation.promise import RECENT, keep
from qcrl.runs.folder import Run
from qcrl.runs.jax_policy import JaxPolicy
from qcrl.runs.lane import Lane
from qcrl.training.checks import length
from qcrl.training.interruption import Interrupted
from qcrl.training.loop import train

KINDS = ("call", "plain")
FRESH = 2000
"""Episodes for the return of every policy, that nothing was chosen or certified by."""


@dataclass(frozen=True)
class Row:
    """One policy: of a call, or of a training to the promise itself."""

    kind: str
    """call or plain."""
    seed: int
    trained_for: float
    verdict: str
    episodes: int
    """That certified."""
    outages: int
    upper_bound: float
    parts: int
    fresh_outage: float
    fresh_return: float


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--algo", default="outage_ppo", metavar="ALGO", help="algorithm (default: outage_ppo)")
    parser.add_argument("--env", default="DynamicEnv-v0", metavar="ENV", help="environment (default: DynamicEnv-v0)")
    parser.add_argument("--preset", default="fast", metavar="NAME", help="its preset (default: fast)")
    parser.add_argument("--promise", type=float, default=0.1, metavar="P", help="what is promised (default: 0.1)")
    parser.add_argument("--limit", type=float, default=15.0, metavar="D", help="allowed episode cost (default: 15)")
    parser.add_argument("--confidence", type=float, default=0.95, metavar="C", help="of a certificate (default: 0.95)")
    parser.add_argument("--calls", type=count, default=10, metavar="N", help="independent calls (default: 10)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="what to train (default: call plain)")
    parser.add_argument("--lanes", type=count, metavar="N", help="seeds in one program (default: all)")
    parser.add_argument("--first-seed", type=int, default=5000, metavar="SEED", help="of the first (default: 5000)")
    parser.add_argument("--steps", type=float, metavar="N", help="of every training (default: the preset's length)")
    parser.add_argument("--episodes", type=count, metavar="N", help="that may certify (default: as for qcrl train)")
    parser.add_argument("--minutes", type=float, metavar="M", help="stop and save after so long (default: never)")
    parser.add_argument("--out", type=Path, default=Path("runs/promise"), metavar="DIR", help="(default: runs/promise)")
    add_changes(parser)


def run(args: argparse.Namespace) -> int:
    folder = args.out / f"{args.env}-{args.preset}-p{args.promise:g}"
    env = make(args.env)
    steps = length(args.algo, args.preset, args.steps)
    episodes = afforded(steps, env, args.episodes)
    aim = target(args.promise, 1 - args.confidence, aimed_by(episodes, steps, env))
    try:
        with _for_minutes(args.minutes):
            rows = _read(folder / "rows.csv")
            for kind, seeds in product(args.kinds, _programs(args)):
                left = {*seeds} - {row.seed for row in rows if row.kind == kind}
                if not left:
                    continue
                trained = _train(args, folder, kind, seeds, aim if kind == "call" else args.promise, steps)
                for lane in (lane for lane in trained.lanes if lane.seed in left):
                    make_row = _call if kind == "call" else _plain
                    rows.append(make_row(args, trained, lane, episodes))
                    _write(folder / "rows.csv", rows)
    except (Interrupted, TimeoutError) as stopped:
        print(f"stopped ({stopped}); run the same command again to go on")
        return 1
    _tell(args, rows, aim, episodes)
    return 0


def _programs(args: argparse.Namespace) -> list[list[int]]:
    """Seeds that are trained side by side."""
    seeds = list(range(args.first_seed, args.first_seed + args.calls))
    size = args.lanes or args.calls
    return [seeds[place : place + size] for place in range(0, len(seeds), size)]


def _train(
    args: argparse.Namespace, folder: Path, kind: str, seeds: list[int], probability: float, steps: float
) -> Run:
    constraint, options = Outage(args.limit, probability), changes(args)
    out = folder / (kind if args.lanes is None else f"{kind}-s{seeds[0]}-{len(seeds)}")
    options |= {"resume": True, "recent": RECENT if kind == "call" else 0}
    return train(args.algo, args.env, constraint, steps, seeds, args.preset, out, **options)


def _call(args: argparse.Namespace, run: Run, lane: Lane, episodes: int) -> Row:
    """What came of one call: of the policies of this lane alone."""
    outcome = keep(run, args.promise, args.confidence, episodes=episodes, seed=lane.seed)
    made = outcome.certificate
    if made is None:
        print(outcome.text)
        return _row("call", run, lane, run.policy_of(lane), "none", 0, 0, 1.0, 0)
    policy = run.policy_in(run.path / made.policy, lane)
    parts = max(1, len(made.parts))
    return _row("call", run, lane, policy, made.verdict, made.episodes, made.outages, made.upper_bound, parts)


def _plain(args: argparse.Namespace, run: Run, lane: Lane, episodes: int) -> Row:
    return _row("plain", run, lane, run.policy_of(lane), "", 0, 0, 1.0, 1)


def _row(
    kind: str,
    run: Run,
    lane: Lane,
    policy: JaxPolicy,
    verdict: str,
    episodes: int,
    outages: int,
    upper: float,
    parts: int,
) -> Row:
    play = Player(run, trained_environment(run))
    (totals,) = play.play([policy], FRESH, [[lane.seed, *b"bench promise"]], "bench")
    fresh = results_of(lane, play.env, totals)
    over, mean = float(exceeds(fresh.costs, lane.limit).mean()), float(np.mean(fresh.returns))
    return Row(kind, lane.seed, lane.probability, verdict, episodes, outages, upper, parts, over, mean)


def _tell(args: argparse.Namespace, rows: list[Row], aim: float, episodes: int) -> None:
    calls, plain = ([row for row in rows if row.kind == kind] for kind in ("call", "plain"))
    certified = sum(row.verdict == "certified" for row in calls)
    means = [float(np.mean([row.fresh_return for row in group] or np.nan)) for group in (calls, plain)]
    print(f"{args.env}, {args.preset}, promise {args.promise:g}, seeds from {args.first_seed}; {hardware()}")
    print_table([each.name for each in fields(Row)], [list(asdict(row).values()) for row in rows])
    print(f"trained for {aim:g}, at most {episodes:,} episodes: {certified} of {len(calls)} certified")
    print(f"mean return {means[0]:.2f}, trained to the promise itself {means[1]:.2f}: {means[0] / means[1]:.1%}")


@contextmanager
def _for_minutes(minutes: float | None) -> Iterator[None]:
    """After so long, training stops and saves, as it does on SIGTERM; anything else stops at once."""
    if minutes is None:
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        handled = signal.getsignal(signal.SIGTERM)
        if handled in (signal.SIG_DFL, None):
            raise TimeoutError("between two trainings")
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    kinds = get_type_hints(Row)
    with open(path, newline="") as file:
        return [Row(**{name: kinds[name](text) for name, text in row.items()}) for row in csv.DictReader(file)]


def _write(path: Path, rows: list[Row]) -> None:
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, [each.name for each in fields(Row)], lineterminator="\n")
        table.writeheader()
        table.writerows(map(asdict, rows))
