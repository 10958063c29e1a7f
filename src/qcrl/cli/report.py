"""qcrl report: one page about runs."""

import argparse

from qcrl.cli.main import Handler, Parser
from qcrl.output import console


def command(parser: Parser, arguments: list[str]) -> Handler:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--out", default="report.html", metavar="FILE", help="page (default: report.html)")
    parser.add_argument(
        "--replays",
        nargs="*",
        default=["median", "worst", "first"],
        metavar="WHICH",
        help="episodes to replay for each setting, of first, median and worst; none if nothing follows "
        "(default: median worst first)",
    )
    parser.add_argument(
        "--episodes", type=int, default=10, metavar="N", help="episodes to choose those from (default: 10)"
    )
    parser.add_argument(
        "--engine", default="jax", metavar="ENGINE", help="what replays run on, jax or mujoco (default: jax)"
    )
    return run


def run(args: argparse.Namespace) -> int:
    from qcrl.show.report import report  # not above: --help need not wait for JAX

    with console().status("reading") as status:
        out = report(args.runs, args.out, args.replays, args.episodes, args.engine, progress=status.update)
    print(f"{out}: {out.stat().st_size / 1e3:,.0f} kB, needs no network")
    return 0
