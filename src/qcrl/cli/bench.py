"""qcrl bench: speed and agreement of the engines."""

import argparse

from qcrl.cli.main import Handler, Parser, main

SUBJECTS = ("env", "parity", "train", "host", "policy", "learn", "certificates", "promise", "robustness", "kills")


def command(parser: Parser, arguments: list[str]) -> Handler:
    parser.add_argument("what", choices=SUBJECTS, nargs="?", default="env", help="what to measure (default: env)")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="options of that measurement")
    return run


def run(args: argparse.Namespace) -> int:
    from qcrl import bench  # not above: --help need not wait for JAX

    return bench.main(args.what, *args.options, parser=Parser, command=main)
