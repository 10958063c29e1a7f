"""qcrl plot: figures of one or several runs."""

import argparse

from qcrl.cli.main import Handler, Parser


def command(parser: Parser, arguments: list[str]) -> Handler:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or CSV files like a run's metrics.csv")
    parser.add_argument(
        "--out", default="curves.png", metavar="FILE", help="picture, .png, .svg or .pdf (default: curves.png)"
    )
    parser.add_argument(
        "--kind",
        default="curves",
        metavar="KIND",
        help="curves: return, outage and cost, or each of several constraints, while training; costs: distribution of "
        "episode costs with fitted tails; multiplier; limits: return and outage over the limit (default: curves)",
    )
    return run


def run(args: argparse.Namespace) -> int:
    from qcrl.show.figures import plot  # not above: --help need not wait for matplotlib

    print(plot(args.runs, args.out, args.kind))
    return 0
