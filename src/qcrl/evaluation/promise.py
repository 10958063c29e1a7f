"""From a promise to a certificate: train below it, take the policy that can keep it, or say what to do if none can."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from qcrl import stats
from qcrl.algos.algorithm import Algorithm
from qcrl.constraints import Constraint, Outage, Together
from qcrl.envs.find import find as find_environment
from qcrl.errors import UserError
from qcrl.evaluation import certify as plain
from qcrl.evaluation import plan as plans
from qcrl.evaluation.aim import POWER, SETTLES_AT, SPREAD, afforded, aimed, aimed_by, target
from qcrl.evaluation.calibrate import (
    Candidate,
    Choice,
    Measure,
    Measured,
    batches,
    calibrate,
    calibration_rows,
    measure,
    shortest,
)
from qcrl.evaluation.certificate import Certificate, earlier_certificates
from qcrl.evaluation.certify import Asked, Chosen, certify_policy, error_left, require_confidence
from qcrl.evaluation.evaluate import Player, choose_lanes, trained_environment
from qcrl.evaluation.plan import Plan
from qcrl.kinds import Json
from qcrl.runs.checkpoints import read_info, write_file
from qcrl.runs.folder import Run, load
from qcrl.runs.jax_policy import write_mixture
from qcrl.runs.lane import Lane
from qcrl.training import loop, selection
from qcrl.training.checks import length
from qcrl.training.signature import with_arguments_of

RECENT = 5
"""Recent policies of every training that are candidates, beside the last one."""
HOPELESS = 0.25
"""With less chance than this no attempt is made, since it would spend error."""
LENGTHS, SURE = 10, 0.999
"""So many lengths of a plan are tried, and the shortest with this chance is run."""


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
    confidence: float = 0.95,
    **options: Any,
) -> Run:
    """Train all seeds under all constraints side by side, as one compiled program, and return the run.

    With a promise, training is steered below it, and the best policy that can keep it is certified: `run.certificates`.

    promise: the outage to certify. A constraint with that probability is trained for less, one with a lower as it is.
    confidence: of the certificate.
    """
    if promise is None:
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
    """Train below a promise, then choose and certify a policy."""
    require_confidence(confidence)
    asked = [constraint] if isinstance(constraint, Constraint | Together) else list(constraint)
    environment = find_environment(env, options.pop("cost", None))
    taken = length(algo, preset, steps, environment)
    count = afforded(taken, environment, episodes)
    aim = target(Outage(0.0, promise).probability, 1 - confidence, aimed_by(count, taken, environment))
    wanted = [aimed(each, promise, aim) for each in asked]
    aims = ", ".join(f"{each.probability:g}" for each in wanted)
    kept = {"probability": promise, "confidence": confidence, "episodes": count}
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
    return run, keep(
        run, promise, confidence, episodes=count, sequential=sequential, key=key, env=environment, progress=progress
    )


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
    processes: int | None = None,
    progress: bool = True,
) -> Outcome:
    """Choose a policy of a run that can keep a promise, and certify it; or say why none can.

    episodes: how many may certify; as many again may choose. A share of the training's steps unless given.
    The other arguments are those of `certify_all`.
    """
    require_confidence(confidence)
    promise = Outage(0.0, promise).probability
    run = run if isinstance(run, Run) else load(run)
    lanes = choose_lanes(run, seed, probability, limit)
    if len({(lane.limit, lane.constraint.cost) for lane in lanes}) > 1:
        raise UserError(f"{run.path} was trained with several limits, and a promise is about one; say which with limit")
    play = Player(run, trained_environment(run, env), engine, deterministic, processes, progress)
    count = afforded(run.config.get("steps", 0), play.env, episodes)
    made = earlier_certificates(run, lanes)
    again = [c.spent for c in made if (c.probability, c.confidence, c.certified_together) == (promise, confidence, 1)]
    error = 1 - confidence - min(again) if again else error_left(made, confidence)
    planned = plans.planned_outage(promise, error, count, POWER)
    candidates = candidates_of(run, lanes)
    by_number: Measure = lambda number, episodes, first: measure(play, candidates[number], episodes, first)
    choice, measured, plan = decide(by_number, len(candidates), promise, error, count, sequential, batch=play.batch)
    if plan is None:
        return Outcome(None, advice(run, candidates, measured, choice, plans.fixed(promise, error, count), planned))
    chosen = _write_choice(run, candidates, measured, choice, promise)
    asked = Asked(promise, confidence, 1, choice.outage, choice.power, plan.episodes, sequential)
    certificate = certify_policy(play, lanes, chosen, asked, key, Console(stderr=True, quiet=not progress))
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
    counts = {min(batches(episodes * (n + 1) / LENGTHS, batch), episodes) for n in range(LENGTHS)} | {episodes}
    lengths = [shape(promise, error, count) for count in sorted(counts)]
    choice, found = calibrate(measured, candidates, episodes, lengths[-1], POWER, batch)
    if choice.power < hopeless:
        return Decision(choice, found, None)
    possible = [plan for plan in lengths if max(plan.certify_at) >= 0]
    return Decision(choice, found, shortest(found, choice, possible, SURE))


def candidates_of(run: Run, lanes: Sequence[Lane]) -> list[Candidate]:
    """The policies of these lanes, the last and recent ones; not those that broke down."""
    found = []
    for lane in lanes:
        recent = sorted((run.path / selection.RECENT).glob(f"{lane}-i*.safetensors"))
        found += [Candidate(lane, path) for path in (run.policy_file(lane), *recent) if read_info(path)["alive"]]
    if not found:
        raise CannotCertify(f"all lanes of {run.path} turned non-finite, so there is nothing to certify; train it anew")
    return found


def advice(
    run: Run, candidates: Sequence[Candidate], measured: Sequence[Measured], choice: Choice, plan: Plan, planned: float
) -> str:
    """Why no policy can be certified, and what would help, in numbers."""
    safest = min(choice.parts, key=lambda part: measured[part].outage)
    found, lane = measured[safest], candidates[safest].lane
    low, high = stats.outage_interval(found.outages, found.episodes)
    why = (
        f"none of {len(measured)} policies can be certified for {plan.promise:g}: the best of them has an outage of "
        f"{found.outage:.4g} ({low:.4g} to {high:.4g} in {found.episodes:,} episodes), and {plan.episodes:,} episodes "
        f"certify at most {planned:.4g} with a chance of {POWER:g}"
    )
    steps = run.config.get("steps", 0)
    if low > lane.probability * (SETTLES_AT + SPREAD) and lane.probability <= plan.promise:
        return (
            f"{why}; it was trained for {lane.probability:g}, so train on with --resume --steps {1.5 * steps:.3g}, or "
            "promise more in case the environment permits no less"
        )
    found_at = max(found.outage, 1 / found.episodes)
    lower = min(lane.probability * planned / found_at, target(plan.promise, plan.error, plan.episodes))
    again = f"train anew with --promise {plan.promise:g} --outage {lower:.2g}"
    if high < plan.promise:
        more = stats.episodes_needed(plan.promise, 1 - plan.error, high, POWER)
        return f"{why}; allow {more:,} episodes with --episodes, or {again}"
    return f"{why}; {again}"


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
    stem = f"promised-p{promise!r}-d{lane.limit:g}"
    paths = (temporary.with_name(f"{stem}{'' if n == 1 else f'-{n}'}.safetensors") for n in range(1, 1000))
    path = next(each for each in paths if not each.exists() or each.read_bytes() == temporary.read_bytes())
    temporary.replace(path)
    return Chosen(lane, path, len(candidates), rows[0]["episodes"], rows, mixture)


def _words(candidates: Sequence[Candidate], measured: Sequence[Measured], choice: Choice) -> str:
    names = [candidates[part].policy.stem for part in choice.parts]
    shares = [f"{name} in {weight:.0%} of episodes" for name, weight in zip(names, choice.weights)]
    chosen = names[0] if len(names) == 1 else " and ".join(shares)
    among = f"Chosen among {len(measured)} policies" if len(measured) > 1 else "The only policy"
    return (
        f"{among}: {chosen}. While choosing, its outage was {choice.outage:.4f} and its "
        f"return {choice.mean_return:.2f}."
    )
