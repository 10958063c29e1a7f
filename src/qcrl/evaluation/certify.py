"""Certificates: an exact one-sided bound on the outage of a policy, from episodes that nothing was chosen by."""

from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from qcrl.constraints import Constraint, Outage, exceeds
from qcrl.envs.base import Description
from qcrl.envs.host.costs import Costs
from qcrl.errors import UserError
from qcrl.evaluation import plan as plans
from qcrl.evaluation import together
from qcrl.evaluation.attempts import POWER, Asked, alone, attempt_of
from qcrl.evaluation.calibrate import Candidate, Measured, calibration_rows, measure
from qcrl.evaluation.certificate import (
    Certificate,
    earlier_certificates,
    episode_seed,
    signing_key,
    write_certificate,
)
from qcrl.evaluation.evaluate import Player, choose_lanes, results_of, trained_environment, versions
from qcrl.evaluation.plan import Plan
from qcrl.kinds import Json
from qcrl.runs.files import file_hash
from qcrl.runs.folder import Run, load
from qcrl.runs.lane import Lane, Numbers, by_setting

SELECTION_EPISODES = 200
"""Per candidate, where one of several seeds is chosen."""
EXPECTED_SHARE = 0.5
"""Share of the promised probability that the true outage is expected to be, unless the user knows better."""


class Chosen(NamedTuple):
    """The policy that is certified, and how it was chosen."""

    lane: Lane
    policy: Path
    candidates: int = 1
    selection_episodes: int = 0
    calibration: Sequence[Json] = ()
    parts: Sequence[Json] = ()


def certify(run: str | Path | Run, confidence: float = 0.95, **options: Any) -> Certificate:
    """Certify one policy of a run, with the options of `certify_all`; where the run has several settings, say which."""
    run = run if isinstance(run, Run) else load(run)
    chosen = {name: options[name] for name in ("seed", "probability", "limit") if name in options}
    groups = _candidates(choose_lanes(run, **chosen), options.get("every_seed", False))
    if len(groups) > 1:
        settings = "; ".join(f"{group[0]}" for group in groups)
        raise UserError(
            f"{run.path} would need {len(groups)} certificates ({settings}); choose one by seed, probability and "
            "limit, or call qcrl.evaluation.certify.certify_all"
        )
    return certify_all(run, confidence, **options)[0]


def certify_all(
    run: str | Path | Run,
    confidence: float = 0.95,
    *,
    promise: float | Sequence[float] | None = None,
    expected: float | None = None,
    power: float = POWER,
    episodes: int | None = None,
    sequential: bool = False,
    engine: str = "jax",
    deterministic: bool = False,
    seed: int | None = None,
    probability: Numbers = None,
    limit: Numbers = None,
    every_seed: bool = False,
    selection_episodes: int = SELECTION_EPISODES,
    key: str | Path | None = None,
    env: object = None,
    cost: Costs = None,
    processes: int | None = None,
    progress: bool = True,
) -> list[Certificate]:
    """Certify one policy per setting of a run, and write the certificates to its folder.

    Of several seeds one is chosen, by `selection_episodes` episodes each that are not used again.

    confidence: of all certificates of this call, and of all attempts of the run so far. The episodes follow from the
        policy and from the number of the attempt. The same call again is the same attempt.
    promise: outage to certify; the one that was trained for unless given. Where several constraints hold together, one
        for each outage constraint.
    expected: outage that the policy is thought to have, for the number of episodes; half the promise unless given.
    power: chance of the verdict "certified" if the policy has the expected outage.
    episodes: how many; those that `expected` and `power` ask for unless given.
    sequential: look several times, and stop as soon as the verdict is clear; `episodes` are then the most.
    engine, deterministic, env, cost, processes: as for `evaluate`.
    seed, probability, limit: only the lanes trained with these; of a policy that serves many, what it is asked for.
    every_seed: certify every seed instead of choosing one.
    key: file of an Ed25519 key that signs the certificates.
    """
    confidence = require_confidence(confidence)
    key = signing_key(key)
    run = run if isinstance(run, Run) else load(run)
    groups = _candidates(choose_lanes(run, seed, probability, limit), every_seed)
    if selection_episodes < 1 and max(map(len, groups)) > 1:
        raise UserError(
            f"selection_episodes is {selection_episodes}, but choosing among {max(map(len, groups))} seeds takes at "
            "least 1 episode each; give more, or certify one seed (seed) or each of them (every_seed)"
        )
    play = Player(run, trained_environment(run, env, cost), engine, deterministic, processes, progress)
    console = Console(stderr=True, quiet=not progress)
    asked = {}
    for group in groups:
        if len(group[0].constraints) > 1:
            if expected is not None:
                raise UserError(
                    f"{group[0]} has several constraints, each with an outage of its own; leave expected out"
                )
            asked[group] = _asked_together(group[0], promise, confidence, len(groups), power, episodes, sequential)
            continue
        if isinstance(promise, Sequence):
            raise UserError(f"{len(promise)} promises are given, but {group[0]} has one constraint; give one promise")
        target = float(Outage(group[0].limit, group[0].probability if promise is None else promise).probability)
        outage = EXPECTED_SHARE * target if expected is None else expected
        wanted = Asked(target, confidence, len(groups), outage, power, episodes, sequential)
        if episodes is not None:
            wanted = wanted._replace(expected=None, power=None)
        wanted.plan((1 - confidence) / len(groups))  # what cannot work is said before anything is run
        asked[group] = wanted, outage
    certificates: list[Certificate] = []
    with alone(run):
        for group, (wanted, outage) in asked.items():
            chosen = Chosen(group[0], run.policy_file(group[0]))
            if len(group) > 1:
                text = f"Choosing among {len(group)} seeds by {selection_episodes:,} episodes each"
                console.print(text, soft_wrap=True)
                candidates = [Candidate(lane, run.policy_file(lane)) for lane in group]
                measured = [measure(play, each, selection_episodes) for each in candidates]
                best = choose(dict(zip(candidates, measured)), outage)
                rows = calibration_rows(run.path, candidates, measured)
                chosen = Chosen(*best, len(group), selection_episodes, rows)
            made = earlier_certificates(run)
            certificates.append(certify_policy(play, made, chosen, wanted, key, console, certificates))
    return certificates


def certify_policy(
    play: Player,
    made: Sequence[Certificate],
    chosen: Chosen,
    asked: Asked,
    key: Any = None,
    console: Console | None = None,
    call: Sequence[Certificate] = (),
) -> Certificate:
    """Run the episodes that certify one policy; write the certificate.

    made: all certificates so far that share one error with this one, among them those of this call.
    """
    run, environment = play.run, Description.of(play.env).as_dict()
    digest = file_hash(chosen.policy)
    seeds = lambda number: episode_seed(digest, environment, play.engine, play.deterministic, number)
    same = [c for c in made if (str(c.lane), c.episode_seed) == (str(chosen.lane), seeds(c.attempt))]
    attempt = attempt_of(made, asked, same, call)
    plan, seed = attempt.plan, seeds(attempt.number)
    if console is not None:
        planned = "" if asked.power is None else f" (power {asked.power:.3g} if its outage is {asked.expected:.4g})"
        most = "at most " if len(plan.looks) > 1 else ""
        takes = f"outage <= {asked.promise:g} takes {most}{plan.episodes:,} fresh episodes{planned}"
        which = f"; this is attempt {attempt.number} of this run" if attempt.number > 1 else ""
        console.print(f"Certifying {chosen.policy.stem}: {takes}{which}", highlight=False, soft_wrap=True)
    rows: list[Json] = []
    constraint: Constraint = chosen.lane.constraint
    if asked.promises:
        constraint = together.first_outage(chosen.lane)
        verdict, counts, rows = together.count(play, chosen.lane, chosen.policy, plan, seed, asked.promises)
    else:
        verdict, counts = count_outages(play, chosen.lane, chosen.policy, plan, seed)
    lower, upper = plan.bounds(len(counts) - 1, counts[-1])
    certificate = Certificate(
        verdict=verdict,
        policy=chosen.policy.relative_to(run.path).as_posix(),
        policy_sha256=digest,
        environment=environment,
        engine=play.engine,
        deterministic=play.deterministic,
        limit=float(constraint.limit),
        cost=constraint.cost,
        probability=asked.promise,
        trained_probability=chosen.lane.probability,
        confidence=asked.confidence,
        certified_together=asked.together,
        attempt=attempt.number,
        spent=attempt.spent,
        error=plan.error,
        expected=asked.expected,
        power=asked.power,
        looks=list(plan.looks),
        spending=plan.spending,
        certify_at=list(plan.certify_at),
        violate_at=list(plan.violate_at),
        counts=counts,
        episodes=plan.looks[len(counts) - 1],
        outages=counts[-1],
        upper_bound=upper,
        lower_bound=lower,
        candidates=chosen.candidates,
        selection_episodes=chosen.selection_episodes,
        calibration=list(chosen.calibration),
        parts=list(chosen.parts),
        episode_seed=seed,
        versions=versions(play.engine),
        seed=chosen.lane.seed,
        learning_rate=chosen.lane.learning_rate,
        at_run_time=chosen.lane.trained is not None,
        constraints=rows,
    ).sealed(key)
    return write_certificate(run, certificate, same)


def count_outages(play: Player, lane: Lane, policy: Path, plan: Plan, seed: int) -> tuple[str, list[int]]:
    """The verdict, and the outages at every look until it was clear."""
    played = play.run.policy_in(policy, lane)

    def count(episodes: int, first: int) -> int:
        totals = play.play_one(played, episodes, [seed, *b"certify"], "certify", first)
        return int(exceeds(results_of(lane, play.env, totals).costs, lane.limit).sum())

    return plans.carry_out(plan, count)


def choose(measured: Mapping[Candidate, Measured], outage: float) -> Candidate:
    """The best mean return among those with at most this outage; the lowest outage where there is none."""
    rank = lambda each: (min(outage - measured[each].outage, 0.0), measured[each].mean_return)
    return max(measured, key=rank)


def _asked_together(
    lane: Lane,
    promise: float | Sequence[float] | None,
    confidence: float,
    certificates: int,
    power: float,
    episodes: int | None,
    sequential: bool,
) -> tuple[Asked, float]:
    """Constraints that hold together: one plan for all, for the one that needs most; and the outage expected of it."""
    if sequential:
        raise UserError(f"{lane} has several constraints, which are certified in one look; leave sequential out")
    promises, error = together.promised(lane, promise), (1 - confidence) / certificates
    count = episodes or together.episodes_for(promises, error, power, EXPECTED_SHARE)
    asked = Asked(promises[0], confidence, certificates, None, None, count, promises=tuple(promises))
    asked.plan(error)  # what cannot work is said before anything is run
    return asked, EXPECTED_SHARE * promises[0]


def require_confidence(confidence: float) -> float:
    if not isinstance(confidence, Real) or not 0 < confidence < 1:
        raise UserError(f"confidence is {confidence}, but it must lie strictly between 0 and 1; 0.95 means 95%")
    return float(confidence)


def _candidates(lanes: Sequence[Lane], every_seed: bool) -> list[tuple[Lane, ...]]:
    """Groups of lanes of which one each is certified."""
    if every_seed:
        return [(lane,) for lane in lanes]
    return [tuple(group) for group in by_setting(lanes)]
