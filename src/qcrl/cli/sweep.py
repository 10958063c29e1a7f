"""qcrl sweep: train and evaluate the cells of a grid file, on this machine or on a Ray cluster."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from qcrl.cli.envs import print_table
from qcrl.cli.main import Handler, Parser
from qcrl.kinds import Settings

if TYPE_CHECKING:
    from qcrl.sweeps import Sweep


def command(parser: Parser, arguments: list[str]) -> Handler:
    parser.add_argument("grid", metavar="GRID.toml", help="what is trained; see docs/sweeps.md")
    parser.add_argument("--out", metavar="DIR", help="folder of the sweep (default: runs/ and the name of the grid)")
    add_options(parser)
    return run


def add_options(parser: Parser) -> None:
    """What every command has that trains a grid."""
    parser.add_argument(
        "--checkpoint-interval", type=float, default=60.0, metavar="S", help="seconds between checkpoints (default: 60)"
    )
    parser.add_argument(
        "--engine", default="local", help="local: one group after the other; ray: side by side (default: local)"
    )
    group = parser.add_argument_group("with --engine ray")
    group.add_argument("--address", metavar="A", help="cluster, auto for the one of this machine (default: start one)")
    group.add_argument("--shared", action="store_true", help="all nodes see the sweep's folder (default: off)")
    group.add_argument("--cpus", type=float, metavar="N", help="CPUs that a group reserves (default: 1)")
    group.add_argument(
        "--gpus",
        type=float,
        metavar="N",
        help="GPUs that a group reserves, 0 for CPUs alone (default: 1 where the cluster has any)",
    )
    group.add_argument("--retries", type=int, metavar="N", help="new starts after a dead worker or node (default: 10)")


def engine_options(args: argparse.Namespace) -> Settings:
    """Those that were given; the engine has its own defaults."""
    given = {name: getattr(args, name) for name in ("address", "shared", "cpus", "gpus", "retries")}
    return {name: value for name, value in given.items() if value is not None and value is not False}


def run(args: argparse.Namespace) -> int:
    from qcrl.sweeps import sweep  # not above: --help need not wait for JAX

    out = Path(args.out or Path("runs") / Path(args.grid).stem)
    result = sweep(args.grid, out, args.engine, checkpoint_interval=args.checkpoint_interval, **engine_options(args))
    for path, lanes in result.frozen.items():
        print(f"{path}: {', '.join(lanes)} turned non-finite and kept the last good policy")
    for path, failure in result.failures.items():
        print(f"{path}: failed: {failure}")
    _print_outcomes(result)
    done = len(result.groups) - len(result.failures)
    print(f"{done} of {len(result.groups)} groups are finished in {out}")
    depths = {group.path.count("/") for group in result.groups}
    runs = f"{out}{depths.pop() * '/*'}/*/" if len(depths) == 1 else " ".join(f"{out}/{g.path}" for g in result.groups)
    print(f"Next: qcrl plot {runs}, qcrl report {runs}")
    return 1 if result.failures or result.frozen else 0


def _print_outcomes(result: "Sweep") -> None:
    """What the fresh episodes say of every setting, all its seeds together."""
    rows = result.pooled
    rates = any(row["learning_rate"] is not None for _, row in rows)
    table = Table("run", "p", "limit", *["rate"] * rates, "seeds", "outage", "95% interval", "return", "cost", box=None)
    for path, row in rows:
        table.add_row(
            path,
            f"{row['probability']:g}",
            f"{row['limit']:g}",
            *([f"{row['learning_rate'] or math.nan:g}"] if rates else []),
            str(row["seeds"]),
            f"{row['outage']:.4f}",
            f"{row['outage_low']:.4f} to {row['outage_high']:.4f}",
            f"{row['mean_return']:.2f} ± {row['std_return']:.2f}",
            f"{row['mean_cost']:.2f}",
        )
    if rows:
        print_table(table)
        print("Fresh episodes of all seeds together. Return ± its standard deviation over episodes.")
