"""qcrl evaluate: returns and costs of a run's policies over a fixed number of episodes, as a table and as files."""

import argparse
from typing import TYPE_CHECKING

from rich.table import Table

from qcrl.cli.envs import print_table
from qcrl.cli.main import Handler, Parser
from qcrl.kinds import Json

if TYPE_CHECKING:
    from qcrl.evaluation.summary import Summary

FEW = "costs have a handful of values only"


def command(parser: Parser, arguments: list[str]) -> Handler:
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("--episodes", type=int, default=1000, metavar="N", help="episodes per lane (default: 1000)")
    parser.add_argument(
        "--promised", action="store_true", help="run the certified policies of promises instead (default: off)"
    )
    add_options(parser, several="+")
    parser.add_argument(
        "--episode-seed", type=int, default=0, metavar="SEED", help="which episodes to run (default: 0)"
    )
    return run


def add_options(parser: Parser, several: str | None = None) -> None:
    """What every command has that runs policies."""
    parser.add_argument("--engine", choices=("jax", "mujoco"), default="jax", help="simulator (default: jax)")
    parser.add_argument(
        "--deterministic", action="store_true", help="act by the mean instead of drawing actions (default: off)"
    )
    parser.add_argument("--seed", type=int, metavar="SEED", help="only this training seed (default: all)")
    parser.add_argument(
        "--probability",
        type=float,
        nargs=several,
        metavar="P",
        help="only policies trained for this outage; of ranges, what to ask for (default: all)",
    )
    parser.add_argument(
        "--limit",
        type=float,
        nargs=several,
        metavar="D",
        help="only policies trained for this limit; of ranges, what to ask for (default: all)",
    )
    parser.add_argument(
        "--processes",
        "--workers",
        type=int,
        metavar="N",
        help="processes that run MuJoCo, or an environment in Python (default: one per core, or none)",
    )


def run(args: argparse.Namespace) -> int:
    from qcrl.evaluation.evaluate import evaluate  # not above: --help need not wait for JAX

    result = evaluate(**vars(args))
    table = Table("seed", "p", "limit", "outage", "95% interval", "return", "cost", "if over", box=None)
    fitted = any(row.gaussian for row in result.per_lane)
    for name in ("quantile", "CVaR", *(("Weibull", "Gaussian") if fitted else ())):
        table.add_column(name)
    for row in result.per_lane:
        table.add_row(*_cells(row, str(row.seed), fitted))
    for row in result.pooled if len(result.per_lane) > len(result.pooled) else ():
        table.add_row(*_cells(row, f"all {row.seeds}", fitted))
    print_table(table)
    for row in [*result.per_lane, *(result.pooled if len(result.per_lane) > len(result.pooled) else [])]:
        for line in together(row):
            print(line)
    actions = "the mean action" if result.deterministic else "drawn actions"
    print(
        f"{result.episodes:,} episodes each of {result.environment['id']} on {result.engine}, {actions}. "
        "Return ± its standard deviation over episodes. If over: the mean cost of episodes over the limit. "
        "Quantile at level 1 - p, CVaR of the worst share p; "
        + ("the last two columns are the outages of the fitted tails." if fitted else f"no tail is fitted: {FEW}.")
    )
    kind = f"{'-deterministic' if result.deterministic else ''}{'-promised' if args.promised else ''}"
    name = f"evaluation-{result.engine}{kind}"
    print(f"Written: {args.run}/{name}.json and .csv")
    return 0


def together(row: "Summary") -> list[str]:
    """What there is to say of constraints that hold together, and of further costs."""
    whose = f"Seed {row.seed}" if row.seed is not None else f"All {row.seeds} seeds"
    lines = [
        f"{whose}, {each['name']}: {each['measured']:.4g}{_interval(each)}, asked for at most {each['bound']:g}: "
        f"{each['judged']}."
        for each in row.constraints or ()
    ]
    if row.outage_any is not None:
        lines.append(f"{whose}: {row.outage_any:.4f} of episodes are over one of the limits.")
    if row.mean_costs is not None:
        lines.append(f"{whose}, mean costs: " + ", ".join(f"{k} {v:.4g}" for k, v in row.mean_costs.items()) + ".")
    return lines


def _interval(judged: Json) -> str:
    return "" if judged["low"] is None else f" ({judged['low']:.4g} to {judged['high']:.4g})"


def _cells(row: "Summary", seeds: str, fitted: bool) -> list[str]:
    low, high = (
        "none" if bound is None else f"{bound:.1f}" for bound in (row.cost_quantile_low, row.cost_quantile_high)
    )
    return [
        seeds,
        f"{row.probability:g}",
        f"{row.limit:g}",
        f"{row.outage:.4f}",
        f"{row.outage_low:.4f} to {row.outage_high:.4f}",
        f"{row.mean_return:.2f} ± {row.std_return:.2f}",
        f"{row.mean_cost:.2f}",
        "none" if row.mean_cost_over is None else f"{row.mean_cost_over:.1f}",
        f"{row.cost_quantile:.1f} ({low} to {high})",
        f"{row.cvar:.1f}",
        *(f"{fit['outage']:.4f}" if fit else "no fit" for fit in (row.weibull, row.gaussian) if fitted),
    ]
