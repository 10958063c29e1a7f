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
    parser.add_argument("--python", metavar="PATH", help="the Python that has the environment (default: this one)")
    parser.add_argument("--episodes", type=int, default=20, metavar="N", help="with random actions (default: 20)")
    parser.add_argument(
        "--steps", type=int, default=20_000, metavar="N", help="but no more than so many (default: 20000)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="SEED", help="of the first episode (default: 0)")
    return run


def run(args: argparse.Namespace) -> int:
    from qcrl.envs.host import elsewhere, suggest  # not above: --help need not wait for Gymnasium
    from qcrl.envs.host.check import check_env

    python = vars(args).pop("python")
    env = args.env if python is None else elsewhere.named(python, args.env)
    report = check_env(**vars(args) | {"env": env, "cost": costs(args.cost)})
    print(report.environment)
    for check in report.checks:
        print(f"  {MARKS[check.holds]:<3} {check.name}: {check.seen}")
    for line in suggest.suggestions(report):
        print(line)
    print(suggest.command(report, env, args.cost or ()))
    return 0 if report.passed else 1
