"""qcrl bench: speed and agreement of the engines."""

import argparse

from qcrl.cli import Handler, Parser
from qcrl.errors import UserError

SUBJECTS = ("env", "parity", "train", "host")


def command(parser: Parser, arguments: list[str]) -> Handler:
    parser.add_argument("what", choices=SUBJECTS, nargs="?", default="env", help="what to measure (default: env)")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="options of that measurement")
    return run


def run(args: argparse.Namespace) -> int:
    try:
        from qcrl import bench  # type: ignore[attr-defined]
    except ImportError as error:
        raise UserError(f"this installation has no benchmarks ({error})") from error
    return bench.main(args.what, *args.options) or 0
