"""qcrl check-env: what holds in an environment, what does not, and what its episodes cost."""

import argparse

from qcrl.cli.asked import costs
from qcrl.cli.main import Handler, Parser

MARKS = {True: "ok", False: "NO", None: "?"}


def command(parser: Parser, arguments: list[str]) -> Handler:
    parser.add_argument("env", metavar="ENV", help="id of Gymnasium or of qcrl, or module:function that makes one")
    parser.add_argument(
        "--cost",
        action="append",
        metavar="COST",
        help="a key of info, or module:function; several as NAME=COST each (default: found, as qcrl train finds it)",
    )
    parser.add_argument("--episodes", type=int, default=20, metavar="N", help="with random actions (default: 20)")
    parser.add_argument(
        "--steps", type=int, default=20_000, metavar="N", help="but no more than so many (default: 20000)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="SEED", help="of the first episode (default: 0)")
    return run


def run(args: argparse.Namespace) -> int:
    from qcrl.envs.host.check import check_env, limits, suggestions  # not above: --help need not wait for Gymnasium

    report = check_env(**vars(args) | {"cost": costs(args.cost)})
    print(report.environment)
    for check in report.checks:
        print(f"  {MARKS[check.holds]:<3} {check.name}: {check.seen}")
    for line in suggestions(report):
        print(line)
    if report.passed and len(limits(report)):
        cost = "".join(f" --cost {each}" for each in args.cost or ())
        first, limit = next(iter(report.every)), f"{limits(report)[0]:.4g}"
        asked = f"--limit {limit} --outage 0.1"
        if first != "cost":
            asked = f"--constraint outage:cost={first},limit={limit},probability=0.1"
        print(f"To train: qcrl train {args.env}{cost} {asked}")
    return 0 if report.passed else 1
