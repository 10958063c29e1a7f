"""How often the whole procedure of a promise certifies, simulated: calibration, choice, mixing and the certificate.

Episodes are drawn from the candidates' true outages, nothing is trained. Where every candidate's outage equals the
promise, a certificate is false; that may happen in at most 1 - confidence of all calls.
"""

import argparse
from typing import NamedTuple

import numpy as np

from qcrl.bench import count, print_row, print_table
from qcrl.errors import UserError
from qcrl.evaluation import plan as plans
from qcrl.evaluation.aim import promised
from qcrl.evaluation.calibrate import Measured
from qcrl.evaluation.certify import require_confidence
from qcrl.evaluation.promise import HOPELESS, decide


class Tally(NamedTuple):
    """Of many simulated calls."""

    certified: float
    attempted: float
    """Share of calls in which certifying did not look hopeless."""
    episodes: float
    """That certified, where it was attempted, in the mean."""


def simulate(
    promise: float,
    outage: float,
    calls: int,
    rng: np.random.Generator,
    *,
    candidates: int = 6,
    episodes: int = 5000,
    confidence: float = 0.95,
    sequential: bool = False,
    hopeless: float = HOPELESS,
) -> Tally:
    """So many calls in which every candidate has this outage. Returns differ by chance, as calibration sees them."""
    certified, lengths = 0, []

    def measured(number: int, count: int, first: int) -> Measured:
        return Measured(count, int(rng.binomial(count, outage)), float(rng.normal(20, 4 / count**0.5)))

    for _ in range(calls):
        plan = decide(measured, candidates, promise, 1 - confidence, episodes, sequential, hopeless).plan
        if plan is not None:
            verdict, counts = plans.carry_out(plan, lambda n, first: int(rng.binomial(n, outage)))
            certified += verdict == "certified"
            lengths.append(plan.looks[len(counts) - 1])
    return Tally(certified / calls, len(lengths) / calls, float(np.mean(lengths or [0])))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=count, default=10_000, metavar="N", help="simulated calls (default: 10000)")
    parser.add_argument("--promise", type=float, default=0.1, metavar="P", help="what is promised (default: 0.1)")
    parser.add_argument("--confidence", type=float, default=0.95, metavar="C", help="of a certificate (default: 0.95)")
    parser.add_argument("--episodes", type=count, default=5000, metavar="N", help="that may certify (default: 5000)")
    parser.add_argument("--candidates", type=count, default=6, metavar="N", help="policies (default: 6)")
    parser.add_argument("--seed", type=int, default=0, help="of the random numbers (default: 0)")
    parser.add_argument(
        "--outages",
        type=float,
        nargs="+",
        default=[1.0],
        metavar="S",
        help="true outages, as shares of the promise (default: 1)",
    )


def run(args: argparse.Namespace) -> None:
    promised(args.promise)
    require_confidence(args.confidence)
    if not all(0 <= share * args.promise <= 1 for share in args.outages):
        raise UserError(f"--outages are {args.outages}, but times the promise must lie between 0 and 1")
    header = "outage / promise", "plan", "attempts", "certified", "attempted", "episodes if attempted"
    print(f"{args.calls:,} calls each, promise {args.promise:g}, {args.candidates} candidates, seed {args.seed}")
    print_table(header, [])
    for share in args.outages:
        for sequential in (False, True):
            for hopeless in (HOPELESS, 0.0):
                tally = simulate(
                    args.promise,
                    share * args.promise,
                    args.calls,
                    np.random.default_rng(args.seed),
                    candidates=args.candidates,
                    episodes=args.episodes,
                    confidence=args.confidence,
                    sequential=sequential,
                    hopeless=hopeless,
                )
                told = f"{tally.certified:.4f}", f"{tally.attempted:.4f}", f"{tally.episodes:,.0f}"
                looks, when = "sequential" if sequential else "fixed", "always" if hopeless == 0 else "unless hopeless"
                print_row([f"{share:g}", looks, when, *told])
