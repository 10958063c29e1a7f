"""Attempts: which attempt of a run a certificate is, whether it was made before, and the error that is left for it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from qcrl import stats
from qcrl.errors import UserError
from qcrl.evaluation import plan as plans
from qcrl.evaluation.calibrate import lengths, share
from qcrl.evaluation.certificate import Certificate
from qcrl.evaluation.evaluate import batch_of
from qcrl.evaluation.plan import Plan
from qcrl.kinds import Json
from qcrl.runs.files import file_hash, locked
from qcrl.runs.folder import Run

POWER = 0.8
"""The chance of a certificate at the expected outage, unless asked for otherwise."""
PROMISED = "promised-"
"""How the names of policies begin that were chosen to be certified."""
NOTHING = 1e-12
"""An error that is smaller is none."""


class Asked(NamedTuple):
    """What shall be certified, and how sure it shall be."""

    promise: float
    confidence: float
    together: int = 1
    """Certificates that share the error."""
    expected: float | None = None
    """The outage that the policy is thought to have, if anything is known about it."""
    power: float | None = None
    """The chance of a certificate then."""
    episodes: int | None = None
    """As many as `expected` and `power` ask for unless given."""
    sequential: bool = False
    promises: tuple[float, ...] = ()
    """Where several constraints hold together: what is promised of each outage constraint."""

    def plan(self, error: float) -> Plan:
        """With so much error."""
        if self.episodes is None:
            expected, power = self.expected or 0.0, self.power or POWER
            return plans.planned(self.promise, error, expected, power, self.sequential)
        least = stats.episodes_needed(self.promise, 1 - error)
        stats.check_episodes(max(self.episodes, 1))
        if self.episodes < least:
            raise UserError(
                f"episodes is {self.episodes}, but even without any outage an outage of {self.promise:g} cannot be "
                f"certified at {1 - error:.4g} confidence with fewer than {least}; give more, or leave it out"
            )
        make = plans.sequential if self.sequential else plans.fixed
        return make(self.promise, error, self.episodes)


class Attempt(NamedTuple):
    """Which attempt of a run this is, with the error that is left for it."""

    number: int
    spent: float
    plan: Plan


def alone(run: Run) -> AbstractContextManager[None]:
    """No other process certifies policies of this run meanwhile: each would spend the error that is left."""
    return locked(run.path / "config.json", f"another process certifies policies of {run.path}; wait for it")


def attempt_of(
    made: Sequence[Certificate], asked: Asked, same: Sequence[Certificate], call: Sequence[Certificate]
) -> Attempt:
    """An attempt that was made already, where the same is asked; that of the call, where it has one; else the next.

    same: the certificates of the same policy, run in the same way.
    """
    budget = (1 - asked.confidence) / asked.together
    for before in same:
        left = budget - before.spent
        if (before.confidence, before.certified_together) != (asked.confidence, asked.together) or left <= NOTHING:
            continue
        if before.promises == asked.promises and before.plan == asked.plan(left):
            return Attempt(before.attempt, before.spent, before.plan)
    # Of a call that was interrupted, certificates may be there from before. Those of any other call have spent error,
    # and after them no older call may have more certificates.
    newest = [before for before in made if before.attempt == _next(made) - 1]
    if newest and {before.sha256 for before in newest} <= {other.sha256 for other in call}:
        return Attempt(newest[0].attempt, newest[0].spent, asked.plan(budget - newest[0].spent))
    spent = error_spent(made, asked.confidence) / asked.together
    return Attempt(_next(made), spent, asked.plan(budget - spent))


def error_spent(made: Sequence[Certificate], confidence: float) -> float:
    """By the certificates made so far. Raise where nothing is left at this confidence."""
    spent = sum(before.error for before in made)
    if 1 - confidence - spent <= NOTHING:
        less = f"ask for less confidence, such as {1 - 2 * spent:.3g}, or " if spent < 0.5 else ""
        raise UserError(
            f"this would be attempt {_next(made)} to certify a policy of this run, and those before have spent an "
            f"error of {spent:.3g}, so that nothing is left at a confidence of {confidence:g}; {less}train anew in "
            "another folder"
        )
    return spent


def spent_before(run: Run, made: Sequence[Certificate], asked: Json, episodes: int, sequential: bool) -> float:
    """What was spent before this attempt at a promise, or before one that this may repeat. Raise if nothing is left.

    No episode is played to find out: a certificate tells by what its candidates played how many episodes led to it.
    asked: what a certificate would say of it.
    """
    found = []
    for before in made:
        alike = asked.items() <= vars(before).items() and Path(before.policy).name.startswith(PROMISED)
        policy = run.path / before.policy
        if alike and _chosen_by(before, episodes, sequential) and policy.is_file():
            found += [before.spent] if file_hash(policy) == before.policy_sha256 else []
    return min(found) if found else error_spent(made, asked["confidence"])


def _chosen_by(certificate: Certificate, episodes: int, sequential: bool) -> bool:
    """Whether so many episodes may have led to it."""
    batch, last = batch_of(certificate.engine), max(certificate.looks, default=0)
    played = [row["episodes"] for row in certificate.calibration]
    once = share(episodes, max(1, len(played)), batch)
    again = [each for each in played if each != once]
    return (
        bool(again)
        and set(again) == {once + share(episodes, len(again), batch)}
        and last in lengths(episodes, batch)
        and sequential == (len(certificate.looks) > 1)
    )


def _next(made: Sequence[Certificate]) -> int:
    return 1 + max((before.attempt for before in made), default=0)
