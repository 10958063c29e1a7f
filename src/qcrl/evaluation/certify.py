"""Certificates: an exact one-sided bound on the outage of a policy, from episodes that nothing was chosen by."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from qcrl import stats
from qcrl.constraints import Outage
from qcrl.envs.base import Description
from qcrl.errors import UserError
from qcrl.evaluation import plan as plans
from qcrl.evaluation.certificate import (
    Certificate,
    earlier_certificates,
    episode_seed,
    file_hash,
    write_certificate,
)
from qcrl.evaluation.evaluate import Player, choose_lanes, results_of, trained_environment, versions
from qcrl.evaluation.plan import Plan
from qcrl.evaluation.summary import Results
from qcrl.kinds import Json
from qcrl.runs.folder import Run, load
from qcrl.runs.lane import Lane, by_setting

SELECTION_EPISODES = 200
"""Per candidate, where one of several seeds is chosen."""
EXPECTED_SHARE = 0.5
"""Share of the promised probability that the true outage is expected to be, unless the user knows better."""
NOTHING = 1e-12
"""An error that is smaller is none."""


class Asked(NamedTuple):
    """What shall be certified, and how sure it shall be."""

    promise: float
    confidence: float
    together: int = 1
    """Certificates that share the error."""
    expected: float = 0.0
    """The outage that the policy is thought to have."""
    power: float = 0.8
    """The chance of a certificate then."""
    episodes: int | None = None
    """As many as `expected` and `power` ask for unless given."""
    sequential: bool = False

    def plan(self, error: float) -> Plan:
        """With so much error."""
        if self.episodes is None:
            return plans.planned(self.promise, error, self.expected, self.power, self.sequential)
        least = stats.episodes_needed(self.promise, 1 - error)
        if self.episodes < least:
            raise UserError(
                f"episodes is {self.episodes}, but even without any outage an outage of {self.promise:g} cannot be "
                f"certified at {1 - error:.4g} confidence with fewer than {least}; give more, or leave it out"
            )
        make = plans.sequential if self.sequential else plans.fixed
        return make(self.promise, error, self.episodes)


class Chosen(NamedTuple):
    """The policy that is certified, and how it was chosen."""

    lane: Lane
    policy: Path
    candidates: int = 1
    selection_episodes: int = 0
    calibration: Sequence[Json] = ()
    parts: Sequence[Json] = ()


class Attempt(NamedTuple):
    """Which attempt of a run this is, with the error that is left for it."""

    number: int
    spent: float
    plan: Plan
    seed: int


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
    promise: float | None = None,
    expected: float | None = None,
    power: float = 0.8,
    episodes: int | None = None,
    sequential: bool = False,
    engine: str = "jax",
    deterministic: bool = False,
    seed: int | None = None,
    probability: float | None = None,
    limit: float | None = None,
    every_seed: bool = False,
    selection_episodes: int = SELECTION_EPISODES,
    key: str | Path | None = None,
    env: Any = None,
    processes: int | None = None,
    progress: bool = True,
) -> list[Certificate]:
    """Certify one policy per setting of a run, and write the certificates to its folder.

    Of several seeds one is chosen, by `selection_episodes` episodes each that are not used again.

    confidence: of all certificates of this call, and of all attempts at these policies so far. The episodes follow from
        the policy and from the number of the attempt. The same call again is the same attempt.
    promise: outage to certify; the one that was trained for unless given.
    expected: outage that the policy is thought to have, for the number of episodes; half the promise unless given.
    power: chance of the verdict "certified" if the policy has the expected outage.
    episodes: how many; those that `expected` and `power` ask for unless given.
    sequential: look several times, and stop as soon as the verdict is clear; `episodes` are then the most.
    engine, deterministic, env, processes: as for `evaluate`.
    seed, probability, limit: only the lanes trained with these.
    every_seed: certify every seed instead of choosing one.
    key: file of an Ed25519 key that signs the certificates.
    """
    require_confidence(confidence)
    run = run if isinstance(run, Run) else load(run)
    groups = _candidates(choose_lanes(run, seed, probability, limit), every_seed)
    if selection_episodes < 1 and max(map(len, groups)) > 1:
        raise UserError(
            f"selection_episodes is {selection_episodes}, but choosing among {max(map(len, groups))} seeds takes at "
            "least 1 episode each; give more, or certify one seed (seed) or each of them (every_seed)"
        )
    play = Player(run, trained_environment(run, env), engine, deterministic, processes, progress)
    console = Console(stderr=True, quiet=not progress)
    asked = {}
    for group in groups:
        target = Outage(group[0].limit, group[0].probability if promise is None else promise).probability
        outage = EXPECTED_SHARE * target if expected is None else expected
        asked[group] = Asked(target, confidence, len(groups), outage, power, episodes, sequential)
        asked[group].plan((1 - confidence) / len(groups))  # what cannot work is said before anything is run
    certificates = []
    for group, wanted in asked.items():
        chosen = Chosen(group[0], run.policy_file(group[0]))
        if len(group) > 1:
            console.print(f"Choosing among {len(group)} seeds by {selection_episodes:,} episodes each", soft_wrap=True)
            results = play(group, selection_episodes, "select", 0)
            chosen = _chosen(run, results, wanted.expected, selection_episodes)
        certificates.append(certify_policy(play, group, chosen, wanted, key, console))
    return certificates


def certify_policy(
    play: Player,
    group: Sequence[Lane],
    chosen: Chosen,
    asked: Asked,
    key: str | Path | None = None,
    console: Console | None = None,
) -> Certificate:
    """Run the episodes that certify one policy, chosen among those of a group of lanes; write the certificate."""
    run, environment = play.run, Description.of(play.env).as_dict()
    digest = file_hash(chosen.policy)
    seed_of = lambda attempt: episode_seed(digest, environment, play.engine, play.deterministic, attempt)
    attempt = _attempt(earlier_certificates(run, group), asked, digest, seed_of)
    plan = attempt.plan
    if console is not None:
        planned = f" ({asked.power:g} power if its outage is {asked.expected:g})" if asked.episodes is None else ""
        most = "at most " if len(plan.looks) > 1 else ""
        takes = f"outage <= {asked.promise:g} takes {most}{plan.episodes:,} fresh episodes{planned}"
        console.print(f"Certifying {chosen.policy.stem}: {takes}", highlight=False, soft_wrap=True)
    verdict, counts = count_outages(play, chosen.lane, chosen.policy, plan, attempt.seed)
    lower, upper = plan.bounds(len(counts) - 1, counts[-1])
    certificate = Certificate(
        verdict=verdict,
        policy=chosen.policy.relative_to(run.path).as_posix(),
        policy_sha256=digest,
        environment=environment,
        engine=play.engine,
        deterministic=play.deterministic,
        limit=chosen.lane.limit,
        cost=chosen.lane.constraint.cost,
        probability=asked.promise,
        trained_probability=chosen.lane.probability,
        confidence=asked.confidence,
        certified_together=asked.together,
        attempt=attempt.number,
        spent=attempt.spent,
        error=plan.error,
        expected=asked.expected if asked.episodes is None else None,
        power=asked.power if asked.episodes is None else None,
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
        episode_seed=attempt.seed,
        versions=versions(play.engine),
        seed=chosen.lane.seed,
        learning_rate=chosen.lane.learning_rate,
    ).sealed(key)
    write_certificate(run, certificate)
    return certificate


def count_outages(play: Player, lane: Lane, policy: Path, plan: Plan, seed: int) -> tuple[str, list[int]]:
    """The verdict, and the outages at every look until it was clear."""
    played, before = play.run.policy_in(policy, lane), 0
    counts: list[int] = []
    for look, now in enumerate(plan.looks):
        (totals,) = play.play([played], now - before, [[seed, *b"certify"]], "certify", before)
        over = int(np.sum(results_of(lane, play.env, totals).costs > lane.limit))
        counts.append(over + (counts[-1] if counts else 0))
        before = now
        verdict = plan.verdict(look, counts[-1])
        if verdict is not None:
            return verdict, counts
    raise AssertionError("the last look always has a verdict")


def choose(results: Mapping[Lane, Results], outage: float) -> Lane:
    """The best mean return among those with at most this outage; the lowest outage where there is none."""

    def rank(lane: Lane) -> tuple[float, float]:
        reached = float(np.mean(results[lane].costs > lane.limit))
        return min(outage - reached, 0.0), float(np.mean(results[lane].returns))

    return max(results, key=rank)


def calibration_row(run: Run, lane: Lane, policy: Path, results: Results) -> Json:
    """What the episodes of the choice told of one candidate."""
    return {
        "policy": policy.relative_to(run.path).as_posix(),
        "lane": str(lane),
        "sha256": file_hash(policy),
        "episodes": len(results.costs),
        "outages": int(np.sum(results.costs > lane.limit)),
        "mean_return": float(np.mean(results.returns)),
    }


def calibrate_again(play: Player, rows: Sequence[Json], lanes: Mapping[str, Lane]) -> Iterator[tuple[Json, Json]]:
    """Every row of a calibration, and what is found now."""
    for row in rows:
        policy = play.run.path / row["policy"]
        lane = lanes[row["lane"]]
        found = calibrate(play, lane, policy, row["episodes"])
        yield row, calibration_row(play.run, lane, policy, found)


def calibrate(play: Player, lane: Lane, policy: Path, episodes: int) -> Results:
    """Episodes that choose, and certify nothing."""
    seed = [0, *f"select {policy.stem}".encode()]
    (totals,) = play.play([play.run.policy_in(policy, lane)], episodes, [seed], "select")
    return results_of(lane, play.env, totals)


def require_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise UserError(f"confidence is {confidence}, but it must lie strictly between 0 and 1; 0.95 means 95%")


def _chosen(run: Run, results: Mapping[Lane, Results], outage: float, episodes: int) -> Chosen:
    lane = choose(results, outage)
    rows = [calibration_row(run, each, run.policy_file(each), found) for each, found in results.items()]
    return Chosen(lane, run.policy_file(lane), len(results), episodes, rows)


def _attempt(made: Sequence[Certificate], asked: Asked, digest: str, seed_of: Any) -> Attempt:
    """An attempt that was made already, where the same is asked of the same policy; else the next one."""
    budget = (1 - asked.confidence) / asked.together
    for before in made:
        left = budget - before.spent
        same = before.policy_sha256 == digest and before.episode_seed == seed_of(before.attempt)
        if same and left > NOTHING and before.plan == asked.plan(left) and before.confidence == asked.confidence:
            return Attempt(before.attempt, before.spent, before.plan, before.episode_seed)
    number, spent = len(made) + 1, sum(before.error for before in made)
    if budget - spent <= NOTHING:
        raise UserError(
            f"this would be attempt {number} to certify a policy of this run, and the {len(made)} before have spent an "
            f"error of {spent:.3g}, so that nothing is left at a confidence of {asked.confidence:g}; ask for less "
            f"confidence, such as {1 - 2 * asked.together * spent:.3g}, or train anew in another folder"
        )
    return Attempt(number, spent, asked.plan(budget - spent), seed_of(number))


def _candidates(lanes: Sequence[Lane], every_seed: bool) -> list[tuple[Lane, ...]]:
    """Groups of lanes of which one each is certified."""
    if every_seed:
        return [(lane,) for lane in lanes]
    return [tuple(group) for group in by_setting(lanes)]
