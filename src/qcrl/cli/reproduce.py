"""qcrl reproduce: figures of the paper, from training to verdicts."""

import argparse

from qcrl.cli.main import Handler, Parser
from qcrl.cli.sweep import add_options, engine_options
from qcrl.reproduce import FIGURES


def command(parser: Parser, arguments: list[str]) -> Handler:
    parser.usage = "qcrl reproduce [FIGURE ...] [options]"
    parser.add_argument(
        "figures", nargs="*", metavar="FIGURE", help=f"{', '.join(FIGURES)} (default: all, one after the other)"
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        metavar="S",
        help="share of the paper's size; 0.01 takes minutes (default: 1)",
    )
    parser.add_argument(
        "--out", default="reproduced", metavar="DIR", help="folder of runs, results and figures (default: reproduced)"
    )
    parser.add_argument(
        "--from", dest="source", metavar="DIR", help="draw from these results, train nothing (default: train)"
    )
    add_options(parser)
    return run


def run(args: argparse.Namespace) -> int:
    from qcrl.reproduce import reproduce  # not above: --help need not wait for JAX

    failed = False
    for figure in args.figures or FIGURES:
        result = reproduce(
            figure,
            args.scale,
            args.out,
            args.source,
            engine=args.engine,
            checkpoint_interval=args.checkpoint_interval,
            **engine_options(args),
        )
        print(f"{figure}: {result.figure}, {result.table}, {result.text}")
        if result.missing:
            print(f"{figure}: {len(result.missing)} settings of the paper are missing; the page lists them")
        for path, failure in result.failures.items():
            print(f"{figure}: {path} failed: {failure}")
        failed = failed or bool(result.failures)
    return 1 if failed else 0
