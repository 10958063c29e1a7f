"""From a promise to a certificate: train below it, take the policy that can keep it, or say what to do if none can."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from qcrl.algos.algorithm import Algorithm
from qcrl.constraints import Constraint, Outage, Together
from qcrl.envs.find import find as find_environment
from qcrl.envs.host.costs import Costs
from qcrl.errors import UserError
from qcrl.evaluation import certify as plain
from qcrl.evaluation import plan as plans
from qcrl.evaluation.advice import advice
from qcrl.evaluation.aim import POWER, afforded, aimed, aimed_by, promised, target
from qcrl.evaluation.attempts import PROMISED, Asked, alone, error_spent, spent_before
from qcrl.evaluation.calibrate import (
    Candidate,
    Choice,
    Measure,
    Measured,
    calibrate,
    calibration_rows,
    lengths,
    measure,
    shortest,
)
from qcrl.evaluation.certificate import Certificate, earlier_certificates, signing_key
from qcrl.evaluation.certify import Chosen, certify_policy, require_confidence
from qcrl.evaluation.evaluate import Player, choose_lanes, trained_environment
from qcrl.evaluation.plan import Plan
from qcrl.kinds import Json
from qcrl.runs.checkpoints import Torn, read_info, write_file
from qcrl.runs.folder import Run, load
from qcrl.runs.jax_policy import write_mixture
from qcrl.runs.lane import Lane
from qcrl.sampling.play import can_play, engine_of
from qcrl.training import loop, selection
from qcrl.training.checks import length
from qcrl.training.claim import resume_command
from qcrl.training.interruption import Interrupted
from qcrl.training.signature import with_arguments_of

CONFIDENCE = 0.95
"""Of a certificate, unless asked otherwise."""
RECENT = 5
"""Recent policies of every training that are candidates, beside the last one."""
HOPELESS = 0.25
"""With less chance than this no attempt is made, since it would spend error."""
SURE = 0.999
"""Of the lengths of a plan that are tried, the shortest with this chance is run."""


class CannotCertify(UserError):
    """No policy of a run can be certified, and why. Nothing is wrong with what was asked for."""

    exit_code = 1


class Decision(NamedTuple):
    """What calibration leads to."""

    choice: Choice
    measured: list[Measured]
    plan: Plan | None


class Outcome(NamedTuple):
    """What came of a promise."""

    certificate: Certificate | None
    text: str
    """Which policy it is about; without a certificate, what to do."""


@with_arguments_of(loop.train)
def train(
    algo: str | Algorithm,
    env: object,
    constraint: Constraint | Sequence[Constraint],
    steps: float | None = None,
    seeds: int | Sequence[int] = 1,
    preset: str | None = None,
    out: str | Path | None = None,
    *,
    promise: float | None = None,
    confidence: float = CONFIDENCE,
    **options: Any,
) -> Run:
    """Train all seeds under all constraints side by side, as one compiled program, and return the run.

    With a promise, training is steered below it, and the best policy that can keep it is certified: `run.certificates`.

    promise: the outage to certify. A constraint with that probability is trained for less, one with a lower as it is.
    confidence: of the certificate.
    """
    if promise is None:
        if confidence != CONFIDENCE:
            raise UserError(f"confidence is {confidence}, that of a certificate, but nothing is promised; give promise")
        return loop.train(algo, env, constraint, steps, seeds, preset, out, **options)
    return train_to_certify(algo, env, constraint, steps, seeds, preset, out, promise, confidence, **options)[0]


def train_to_certify(
    algo: str | Algorithm,
    env: object,
    constraint: Constraint | Together | Sequence[Constraint | Together],
    steps: float | None,
    seeds: int | Sequence[int],
    preset: str | None,
    out: str | Path | None,
    promise: float,
    confidence: float = 0.95,
    *,
    episodes: int | None = None,
    sequential: bool = False,
    key: str | Path | None = None,
    progress: bool = True,
    **options: Any,
) -> tuple[Run, Outcome]:
    """Train below a promise, then choose and certify a policy. What cannot work is said before anything is trained."""
    confidence = require_confidence(confidence)
    signing = signing_key(key)
    promise = promised(promise)
    for name in {"recent", "extra", "greeting"} & options.keys():
        raise UserError(
            f"{name} is {options[name]!r}, but a promise has its own; leave {name} out, or leave promise out"
        )
    asked = [constraint] if isinstance(constraint, Constraint | Together) else constraint
    if not isinstance(asked, Sequence) or isinstance(asked, str) or not asked:
        raise UserError(f"the constraint is {constraint!r}, but must be one such as qcrl.Outage(15, 0.1), or a list")
    environment = find_environment(env, options.pop("cost", None))
    taken = length(algo, preset, steps, environment)
    count = afforded(taken, environment, episodes)
    aim = target(promise, 1 - confidence, aimed_by(count, taken, environment))
    wanted = [aimed(each, promise, aim) for each in asked]
    if not can_play(environment):
        raise UserError(f"{environment.id} is a vector environment; to promise, give the function that makes one")
    if len({(each.limit, each.cost) for each in wanted}) > 1:
        raise UserError("several limits are given, and a promise is about one; train the others apart")
    if options.get("resume") and out is not None and (Path(out) / "config.json").exists():
        certified: Json = {"probability": promise, "confidence": confidence, "engine": engine_of(environment)}
        wanted = _resumed(load(out), wanted, aim, certified, taken, count, sequential)
    aims = ", ".join(f"{each.probability:g}" for each in wanted)
    kept: Json = {"probability": promise, "confidence": confidence, "episodes": count}
    kept |= {"sequential": True} if sequential else {}
    if isinstance(key, str | Path) and Path(key).is_file():  # of a pipe nothing is left
        kept["key"] = str(Path(key).resolve())
    run = loop.train(
        algo,
        environment,
        wanted,
        steps,
        seeds,
        preset,
        out,
        progress=progress,
        recent=RECENT,
        extra={"promise": kept},
        greeting=f"to promise {promise:g} at {confidence:.4g} confidence with {count:,} episodes, trains for {aims}",
        **options,
    )
    try:
        return run, keep(
            run,
            promise,
            confidence,
            episodes=count,
            sequential=sequential,
            key=signing,
            env=environment,
            processes=options.get("workers") or None,
            step_timeout=options.get("step_timeout"),
            progress=progress,
        )
    except KeyboardInterrupt as interrupt:
        raise Interrupted(resume_command(run.path, run.config), signal.SIGINT) from interrupt


def _resumed(
    run: Run, wanted: Sequence[Outage], aim: float, certified: Json, steps: float, episodes: int, sequential: bool
) -> list[Outage]:
    """What is trained for where a run goes on: the aim that it began with, which other steps would change."""
    made = earlier_certificates(run)
    if steps > run.config.get("steps", 0):
        error_spent(made, certified["confidence"])
    spent_before(run, made, certified | {"limit": wanted[0].limit, "deterministic": False}, episodes, sequential)
    kept, before = run.config.get("promise", {}), run.config.get("probabilities", [])
    if any(kept.get(name) != certified[name] for name in ("probability", "confidence")) or len(before) != len(wanted):
        return list(wanted)
    return [
        Outage(each.limit, stored, each.cost) if each.probability == aim else each
        for each, stored in zip(wanted, before)
    ]


def certify(run: str | Path | Run, confidence: float = 0.95, **options: Any) -> Certificate:
    """Certify one policy of a run, with the options of `certify_all`.

    With a promise, and no policy or plan of one's own (seed, every_seed, expected, power or selection_episodes), the
    policy is chosen: among the seeds and recent policies of the run, and mixtures of two. Where none can keep the
    promise, the error says what to do.
    """
    run = run if isinstance(run, Run) else load(run)
    if not is_promise(run, options):
        return plain.certify(run, confidence, **options)
    outcome = keep(run, options.pop("promise"), confidence, **options)
    if outcome.certificate is None:
        raise CannotCertify(outcome.text)
    return outcome.certificate


def is_promise(run: Run, options: Json) -> bool:
    """Whether the policy and the plan are left to the promise, which is about one constraint."""
    named = any(options.get(name) is not None for name in ("seed", "expected", "power", "selection_episodes"))
    alone = len(run.lanes[0].constraints) == 1 and not run.lanes[0].constraint.ranged
    return options.get("promise") is not None and not named and not options.get("every_seed") and alone


def keep(
    run: str | Path | Run,
    promise: float,
    confidence: float = 0.95,
    *,
    episodes: int | None = None,
    sequential: bool = False,
    engine: str = "jax",
    deterministic: bool = False,
    seed: int | None = None,
    probability: float | None = None,
    limit: float | None = None,
    key: str | Path | None = None,
    env: object = None,
    cost: Costs = None,
    processes: int | None = None,
    progress: bool = True,
    step_timeout: float | None = None,
) -> Outcome:
    """Choose a policy of a run that can keep a promise, and certify it; or say why none can.

    episodes: how many may certify; as many again may choose. A share of the training's steps unless given.
    seed: only this one, as if the others were runs of their own, whose certificates spend no error of this one. So
        `qcrl bench promise` makes many independent calls of one run.
    step_timeout: seconds to wait for a worker; as in the training unless given.
    The other arguments are those of `certify_all`.
    """
    confidence = require_confidence(confidence)
    key = signing_key(key)
    promise = promised(promise)
    run = run if isinstance(run, Run) else load(run)
    lanes = choose_lanes(run, seed, probability, limit)
    if len({(lane.limit, lane.constraint.cost) for lane in lanes}) > 1:
        raise UserError(f"{run.path} was trained with several limits, and a promise is about one; say which with limit")
    play = Player(run, trained_environment(run, env, cost), engine, deterministic, processes, progress, step_timeout)
    count = afforded(run.config.get("steps", 0), play.env, episodes)
    with alone(run):
        made = earlier_certificates(run, None if seed is None else lanes)
        asked: Json = {"probability": promise, "confidence": confidence, "limit": lanes[0].limit}
        asked |= {"engine": play.engine, "deterministic": deterministic}
        error = 1 - confidence - spent_before(run, made, asked, count, sequential)
        planned = plans.planned_outage(promise, error, count, POWER)
        candidates = candidates_of(run, lanes)
        by_number: Measure = lambda number, episodes, first: measure(play, candidates[number], episodes, first)
        choice, measured, plan = decide(by_number, len(candidates), promise, error, count, sequential, batch=play.batch)
        if plan is None:
            return Outcome(None, advice(run, candidates, measured, choice, plans.fixed(promise, error, count), planned))
        chosen = _write_choice(run, candidates, measured, choice, promise)
        wanted = Asked(promise, confidence, 1, choice.outage, choice.power, plan.episodes, sequential)
        certificate = certify_policy(play, made, chosen, wanted, key, Console(stderr=True, quiet=not progress))
    return Outcome(certificate, _words(candidates, measured, choice))


def decide(
    measured: Measure,
    candidates: int,
    promise: float,
    error: float,
    episodes: int,
    sequential: bool = False,
    hopeless: float = HOPELESS,
    batch: int = 1,
) -> Decision:
    """Which of so many candidates, or which mixture, to certify, and in how many episodes; no plan where hopeless."""
    shape = plans.sequential if sequential else plans.fixed
    tried = [shape(promise, error, count) for count in lengths(episodes, batch)]
    choice, found = calibrate(measured, candidates, episodes, tried[-1], POWER, batch)
    if choice.power < hopeless:
        return Decision(choice, found, None)
    possible = [plan for plan in tried if max(plan.certify_at) >= 0]
    return Decision(choice, found, shortest(found, choice, possible, SURE))


def candidates_of(run: Run, lanes: Sequence[Lane]) -> list[Candidate]:
    """The policies of these lanes, the last and recent ones; not those that broke down."""
    found = []
    for lane in lanes:
        recent = sorted((run.path / selection.RECENT).glob(f"{lane}-i*.safetensors"))
        found += [Candidate(lane, path) for path in (run.policy_file(lane), *recent) if _alive(path)]
    if not found:
        raise CannotCertify(f"all lanes of {run.path} turned non-finite, so there is nothing to certify; train it anew")
    return found


def _alive(policy: Path) -> bool:
    try:
        return bool(read_info(policy).get("alive", True))
    except Torn as torn:
        raise UserError(f"{torn}; put it back, or delete it where it lies in {selection.RECENT}") from None


def _write_choice(
    run: Run, candidates: Sequence[Candidate], measured: Sequence[Measured], choice: Choice, promise: float
) -> Chosen:
    """The chosen policy in a file of its own."""
    rows = calibration_rows(run.path, candidates, measured)
    parts = [candidates[part] for part in choice.parts]
    lane = parts[0].lane
    temporary = run.path / "policies" / ".promised.safetensors"
    mixture: list[Json] = []
    if len(parts) == 1:
        write_file(temporary, parts[0].policy.read_bytes())
    else:
        names = [{name: rows[part][name] for name in ("policy", "sha256")} for part in choice.parts]
        policies = [run.policy_in(each.policy, each.lane) for each in parts]
        write_mixture(temporary, policies, choice.weights, names)
        mixture = read_info(temporary)["mixture"]
    stem = f"{PROMISED}p{promise!r}-d{lane.limit:g}"
    paths = (temporary.with_name(f"{stem}{'' if n == 1 else f'-{n}'}.safetensors") for n in range(1, 1000))
    path = next(each for each in paths if not each.exists() or each.read_bytes() == temporary.read_bytes())
    temporary.replace(path)
    return Chosen(lane, path, len(candidates), min(row["episodes"] for row in rows), rows, mixture)


def _words(candidates: Sequence[Candidate], measured: Sequence[Measured], choice: Choice) -> str:
    names = [candidates[part].policy.stem for part in choice.parts]
    shares = [f"{name} in {weight:.0%} of episodes" for name, weight in zip(names, choice.weights)]
    chosen = names[0] if len(names) == 1 else " and ".join(shares)
    among = f"Chosen among {len(measured)} policies" if len(measured) > 1 else "The only policy"
    return (
        f"{among}: {chosen}. While choosing, its outage was {choice.outage:.4f} and its "
        f"return {choice.mean_return:.2f}."
    )
