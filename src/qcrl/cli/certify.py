"""qcrl certify: a promise about a policy's outage with an exact bound, or the check of one that was made."""

import argparse
from typing import TYPE_CHECKING

from qcrl.cli.evaluate import add_options
from qcrl.cli.main import Handler, Parser
from qcrl.errors import UserError
from qcrl.kinds import Settings

if TYPE_CHECKING:
    from qcrl.runs.folder import Run

THE_RUN_S = object()
"""Where --promise has no number: what the run was trained to promise, or for."""


def command(parser: Parser, arguments: list[str]) -> Handler:
    parser.add_argument("run", metavar="RUN", nargs="?", help="run folder (default with --verify: where FILE is)")
    parser.add_argument(
        "--confidence",
        type=float,
        metavar="C",
        help="of all certificates together (default: 0.95; where --promise has no number, that of the training)",
    )
    parser.add_argument(
        "--promise",
        type=float,
        nargs="?",
        const=THE_RUN_S,
        metavar="P",
        help="outage to certify; without a plan of your own, the policy that can keep it is chosen among seeds, recent "
        "policies and mixtures (default: the one trained for)",
    )
    parser.add_argument(
        "--promises",
        type=float,
        nargs="+",
        metavar="P",
        help="one for each outage constraint, where several hold together (default: what was trained for)",
    )
    parser.add_argument(
        "--expected", type=float, metavar="P", help="outage to plan the episodes for (default: half the promise)"
    )
    parser.add_argument("--power", type=float, metavar="C", help="chance to certify the expected outage (default: 0.8)")
    parser.add_argument(
        "--episodes",
        type=int,
        metavar="N",
        help="how many (default: what --expected and --power ask for; with --promise, what its training affords; "
        "where that has no number, as for the training)",
    )
    parser.add_argument(
        "--every-seed", action="store_true", help="certify each seed instead of choosing one (default: off)"
    )
    parser.add_argument("--selection-episodes", type=int, metavar="N", help="per seed, to choose one (default: 200)")
    add_options(parser)
    parser.add_argument(
        "--sequential",
        action="store_true",
        help="look several times, and stop as soon as the verdict is clear (default: off; where --promise has no "
        "number, as for the training)",
    )
    parser.add_argument(
        "--key", metavar="FILE", help="Ed25519 key in PEM, to sign with, or to verify by (default: no signature)"
    )
    parser.add_argument(
        "--verify", metavar="FILE", help="run this certificate's episodes again and compare (default: off)"
    )
    return run


def run(args: argparse.Namespace) -> int:
    options = vars(args)
    file = options.pop("verify")
    if file is not None:
        return verify(file, options)
    if args.run is None:
        raise UserError("which run? give its folder, as in: qcrl certify RUN")
    # Not above: --help need not wait for JAX.
    from qcrl.evaluation.certify import certify_all
    from qcrl.evaluation.promise import is_promise
    from qcrl.runs.folder import load

    run = load(options.pop("run"))
    kept = run.config.get("promise", {}) if args.promise is THE_RUN_S else {}
    if args.promise is THE_RUN_S:
        options["promise"] = kept.get("probability", run.lanes[0].probability)
    options = {name: value for name, value in options.items() if value is not None and value is not False}
    if "confidence" in kept:
        options.setdefault("confidence", kept["confidence"])
    if "promises" in options:
        if len(run.lanes[0].constraints) == 1:
            raise UserError("--promises are of several constraints, but this run has one; give --promise")
        if "promise" in options:
            raise UserError("--promise and --promises say the same; give one of them")
        options["promise"] = options.pop("promises")
    if is_promise(run, options):
        for name in kept.keys() & {"episodes", "sequential"}:  # no key: whoever has it says where it is
            options.setdefault(name, kept[name])
        return keep_promise(run, options)
    for certificate in certify_all(run, **options):
        print(certificate)
        print(f"Written: {run.path / certificate.file}")
        if certificate.verdict == "undecided":
            print("These episodes cannot tell. Train below the probability that you promise; see docs/promise.md.")
    return 0


def keep_promise(run: "Run", options: Settings) -> int:
    from qcrl.evaluation.advice import after
    from qcrl.evaluation.promise import keep

    outcome = keep(run, **options)
    print(outcome.text)
    if outcome.certificate is None:
        return 1
    print(outcome.certificate)
    print(f"Written: {run.path / outcome.certificate.file}, of {run.path / outcome.certificate.policy}")
    if outcome.certificate.verdict != "certified":
        print(after(outcome.certificate))
        return 1
    return 0


def verify(file: str, options: Settings) -> int:
    from qcrl.evaluation.verify import verify

    certificate, difference = verify(file, options["run"], key=options["key"], processes=options["processes"])
    print(certificate)
    if difference is not None:
        print(f"Not verified: {difference}.")
        return 1
    signed = "" if certificate.signature is None else f", signed with the key {certificate.signature['public_key']}"
    print(f"Verified: the same policy, the same outages{signed}.")
    return 0
