"""Checking a certificate: everything that it asserts is computed again from the certificate and the policy files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from qcrl import ranges
from qcrl.envs.base import Description
from qcrl.envs.host.costs import Costs
from qcrl.errors import UserError
from qcrl.evaluation import together
from qcrl.evaluation.attempts import PROMISED
from qcrl.evaluation.calibrate import Candidate, measure
from qcrl.evaluation.certificate import (
    Certificate,
    episode_seed,
    read_certificate,
    signature_problem,
)
from qcrl.evaluation.certify import count_outages
from qcrl.evaluation.evaluate import Player, choose_lanes, trained_environment, versions
from qcrl.evaluation.plan import bounded
from qcrl.runs.files import file_hash
from qcrl.runs.folder import Run, load
from qcrl.runs.lane import Lane
from qcrl.stats import MOST_EPISODES

ROUNDING = 1e-9
"""Bounds that differ by less agree."""


def verify(
    file: str | Path,
    run: str | Path | Run | None = None,
    *,
    key: str | Path | None = None,
    env: object = None,
    cost: Costs = None,
    processes: int | None = None,
    progress: bool = True,
) -> tuple[Certificate, str | None]:
    """Check all that a certificate says. The certificate, and the first thing in which it differs: None if it is true.

    run: where the policies are; the folder of the certificate unless given.
    key: file of the public key that it must be signed with.
    env, cost, processes: as for `evaluate`.
    """
    certificate = read_certificate(file)
    run = Path(file).parent if run is None else run
    run = run if isinstance(run, Run) else load(run)
    try:
        return certificate, next(_differences(certificate, run, key, env, cost, processes, progress), None)
    except UserError as error:
        if certificate.whole:
            raise
        return certificate, f"it was changed after it was written, and cannot be checked ({error})"
    except (LookupError, TypeError, ValueError, OverflowError) as error:  # other things than the hash was made for
        return certificate, f"it holds something that no certificate holds ({error!r})"


def _differences(
    c: Certificate, run: Run, key: str | Path | None, env: object, cost: Costs, processes: int | None, progress: bool
) -> Iterator[str]:
    """From what is quick to check to what takes episodes."""
    yield from _differences_on_paper(c)
    lane = _lane(c, run)
    if c.at_run_time != (lane.trained is not None):
        trained = ranges.text(run.lanes[0].constraint.limit)
        yield f"at_run_time is {c.at_run_time}, but the policy was trained for the limit {trained}"
    judged = together.first_outage(lane) if c.constraints else lane.constraint
    if (c.limit, c.cost) != (judged.limit, judged.cost):
        yield f"it is about {c.limit:g} of {c.cost}, but the policy's limit is {judged.limit:g} of {judged.cost}"
    policy = run.path / c.policy
    if not policy.is_file() or run.path.resolve() not in policy.resolve().parents:
        raise UserError(f"{run.path} has no policy file {c.policy}; give the run that was certified with RUN")
    if file_hash(policy) != c.policy_sha256:
        yield f"the policy {c.policy} is another one than the certified"
    play = Player(run, trained_environment(run, env, cost), c.engine, c.deterministic, processes, progress)
    environment = Description.of(play.env).as_dict()
    if environment != c.environment:
        yield "the environment is another one than the certified"
    seed = episode_seed(c.policy_sha256, environment, c.engine, c.deterministic, c.attempt)
    if seed != c.episode_seed:
        yield f"episode_seed is {c.episode_seed}, but attempt {c.attempt} at this policy has {seed}"
    problem = signature_problem(c, key)
    if problem is not None:
        yield problem
    if not c.whole:
        yield "it was changed after it was written: its sha256 is not that of its content"
    parts = run.policy_in(policy, lane).info.get("mixture", [])
    if parts != c.parts:
        yield "parts are not those that the policy is a mixture of"
    changed = [name for name, value in versions(c.engine).items() if value != c.versions.get(name)]
    why = f"; other {', '.join(changed)} than then, which may change an episode by rounding" if changed else ""
    lanes = {str(each): each for own in run.lanes for each in (own, *own.judged(c.limit, c.trained_probability))}
    for row in c.calibration:
        candidate = Candidate(lanes[row["lane"]], run.path / row["policy"])
        if not candidate.policy.is_file() or file_hash(candidate.policy) != row["sha256"]:
            yield f"the candidate {row['policy']} is not the policy that it was"
        found = measure(play, candidate, row["episodes"])
        if found.outages != row["outages"] or not np.isclose(found.mean_return, row["mean_return"], rtol=1e-5):
            yield (
                f"the candidate {row['policy']} has {found.outages} outages and returns {found.mean_return:.6g}, not "
                f"{row['outages']} and {row['mean_return']:.6g}{why}"
            )
    if c.constraints:
        promises = c.promises
        if promises[:1] != (c.probability,):
            yield f"probability is {c.probability:g}, but its first promise is another"
        verdict, counts, rows = together.count(play, lane, policy, c.plan, c.episode_seed, promises)
        if not together.same(rows, c.constraints):
            yield f"of the constraints is found: {' '.join(row['words'] for row in rows)}{why}"
    else:
        verdict, counts = count_outages(play, lane, policy, c.plan, c.episode_seed)
    if (verdict, counts) != (c.verdict, c.counts):
        yield f"{counts[-1]} outages in {c.looks[len(counts) - 1]} episodes, not {c.outages} in {c.episodes}{why}"


def _differences_on_paper(c: Certificate) -> Iterator[str]:
    """What follows from the certificate alone."""
    if not 0 < c.confidence < 1:
        yield f"confidence is {c.confidence}, which is none"
        return
    if c.certified_together < 1 or c.attempt < 1 or (c.attempt == 1) != (c.spent == 0):
        yield f"certified_together is {c.certified_together}, attempt {c.attempt} and spent {c.spent}, which cannot be"
        return
    error = (1 - c.confidence) / c.certified_together - c.spent
    if not np.isclose(c.error, error, rtol=0, atol=ROUNDING) or not 0 < c.probability < 1 or error <= 0:
        yield f"error is {c.error:.6g} at a probability of {c.probability:g}, but {error:.6g} was left"
        return
    if not c.looks or c.looks[-1] > MOST_EPISODES or any(a >= b for a, b in zip([0, *c.looks], c.looks)):
        yield f"looks are {c.looks}, which are no growing numbers of episodes"
        return
    plan = bounded(c.probability, c.error, tuple(c.looks), c.spending)
    if plan != c.plan:
        yield f"certify_at and violate_at are not those of {c.looks[-1]} episodes with an error of {c.error:.6g}"
        return
    if not 0 < len(c.counts) <= len(c.looks) or (c.counts[-1], c.looks[len(c.counts) - 1]) != (c.outages, c.episodes):
        yield f"{c.outages} outages in {c.episodes} episodes are not what was counted at the last look"
        return
    verdicts = [plan.verdict(look, outages) for look, outages in enumerate(c.counts)]
    if c.constraints and c.verdict != together.verdict_of(c.constraints):
        yield f"its constraints together mean {together.verdict_of(c.constraints)}, not {c.verdict}"
    if not c.constraints and verdicts != [None] * (len(c.counts) - 1) + [c.verdict]:
        found = next((each for each in verdicts if each is not None), "undecided")
        yield f"{c.outages} outages in {c.episodes} episodes mean {found}, not {c.verdict}"
    chosen = min((row["episodes"] for row in c.calibration), default=0)
    if (c.candidates, c.selection_episodes) != (max(1, len(c.calibration)), chosen) or (
        Path(c.policy).name.startswith(PROMISED) and not c.calibration
    ):
        yield (
            f"{c.candidates} candidates and {c.selection_episodes} episodes of each are not those of its calibration, "
            f"which has {len(c.calibration)} and at least {chosen}"
        )
    if not 0 <= c.outages <= c.episodes:
        yield f"there are {c.outages} outages in {c.episodes} episodes"
        return
    lower, upper = plan.bounds(len(c.counts) - 1, c.outages)
    if not np.allclose((lower, upper), (c.lower_bound, c.upper_bound), rtol=0, atol=ROUNDING):
        yield f"the bounds are {lower:.6g} and {upper:.6g}, not {c.lower_bound:.6g} and {c.upper_bound:.6g}"


def _lane(c: Certificate, run: Run) -> Lane:
    asked = (c.trained_probability, c.limit) if run.lanes[0].constraint.ranged else ()
    trained = choose_lanes(run, c.seed, *asked)
    lane = next((lane for lane in trained if str(lane) == str(c.lane)), None)
    if lane is None:
        raise UserError(f"{run.path} has no lane {c.lane}; give the run that was certified")
    return lane
