"""Options and last words of a training that ends with a certificate."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from qcrl.envs import ENVIRONMENT_IDS
from qcrl.kinds import Settings
from qcrl.output import console

if TYPE_CHECKING:
    from qcrl.evaluation.promise import Outcome
    from qcrl.runs.folder import Run

DEFAULTS: Settings = {
    "promise": "0.1 where neither algorithm, environment nor outage is given, else none",
    "confidence": 0.95,
    "episodes": "as many as a share of the training's steps makes",
    "sequential": "off",
    "key": "no signature",
}
NEWCOMER_S = 0.1
"""The promise of `qcrl train` alone."""


def add_options(option: Callable[..., None]) -> None:
    option("--promise", "outage to certify; trains below it, then certifies the best policy", type=float, metavar="P")
    option("--confidence", "of the certificate", type=float, metavar="C")
    option("--episodes", "episodes that may certify; as many again may choose the policy", type=int, metavar="N")
    option("--sequential", "certify in several looks, and stop as soon as the verdict is clear", action="store_true")
    option("--key", "Ed25519 key in PEM that signs the certificate", metavar="FILE")


def promise_of(args: argparse.Namespace, stored: Settings) -> float | None:
    """What is promised: as asked, as in the run that is resumed, or by `qcrl train` alone."""
    if args.promise is not None or args.resume:
        return stored.get("probability") if args.promise is None else args.promise
    named = (args.algo, args.env, args.outage, args.limit, args.constraint)
    return NEWCOMER_S if all(each is None for each in named) else None


def key_of(args: argparse.Namespace, stored: Settings) -> str | None:
    """The file of the key: as given, or as in the run that is resumed, where it is still there."""
    key = stored.get("key") if args.key is None else args.key
    if args.key is None and key is not None and not Path(key).is_file():
        text = f"warning: the key {key} is not there, so the certificate will be unsigned; give --key FILE to sign it"
        console().print(text, highlight=False, markup=False, soft_wrap=True)
        return None
    return key


def finish(run: "Run", outcome: "Outcome") -> int:
    """Say what came of the promise, and show the policy where that can be done."""
    from qcrl.evaluation.advice import after  # not above: --help need not wait for JAX
    from qcrl.training.claim import trusting

    certificate = outcome.certificate
    text = f"{outcome.text[0].upper()}{outcome.text[1:]}".rstrip(".") + "."
    if certificate is not None:
        print(text)
        print(certificate)
        print(f"Certificate: {run.path / certificate.file}")
        print(f"Policy: {run.path / certificate.policy}")
    if run.config["environment"]["id"] in ENVIRONMENT_IDS:
        _show(run)
    print(f"Run folder: {run.path}")
    if certificate is None:
        print(text)  # last, since it says what to do
    else:
        trust = trusting(run.config)
        print(f"Next: qcrl certify --verify {run.path / certificate.file}{trust}, qcrl evaluate {run.path}{trust}")
        if certificate.verdict != "certified":
            print(after(certificate))
    return 0 if certificate is not None and certificate.verdict == "certified" else 1


def _show(run: "Run") -> None:
    """A film of an episode, and the page about the run."""
    from qcrl.cli.render import film_of
    from qcrl.runs.folder import NotCertified
    from qcrl.show.report import report

    try:
        file, lane, _ = run.promises()[-1]
    except NotCertified:
        lane = run.lanes[0]
        file = run.policy_file(lane)
    print(f"Film: {film_of([(run, lane, run.policy_in(file, lane))], run.path / 'episode.gif', 'median', 3)}")
    print(f"Report: {report([run.path], run.path / 'report.html', ['median'], 3)}")
