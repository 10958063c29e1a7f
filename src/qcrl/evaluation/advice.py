"""What to do where a promise could not be certified, in numbers."""

from collections.abc import Sequence

from qcrl import stats
from qcrl.errors import UserError
from qcrl.evaluation.aim import POWER, SETTLES_AT, SPREAD, target
from qcrl.evaluation.calibrate import Candidate, Choice, Measured
from qcrl.evaluation.certificate import Certificate
from qcrl.evaluation.plan import Plan
from qcrl.runs.folder import Run

LOWER, LOWEST = 0.9, 0.5
"""After an attempt that failed: so far below what would just have been certified, and at least so much of before."""


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
        ends = "algorithm" in run.config and run.config["algorithm"]["fields"].get("learning_rate_end", "inf") != "inf"
        how = "anew in another folder with" if ends else "on with --resume"
        return (
            f"{why}; it was trained for {lane.probability:g}, so train {how} --steps {1.5 * steps:.3g}, or "
            "promise more in case the environment permits no less"
        )
    found_at = max(found.outage, 1 / found.episodes)
    lower = min(lane.probability * planned / found_at, target(plan.promise, plan.error, plan.episodes))
    again = f"train anew with --promise {plan.promise:g} --outage {lower:.2g}"
    if high < plan.promise:
        try:
            more = stats.episodes_needed(plan.promise, 1 - plan.error, high, POWER)
        except UserError:  # so close to the promise that no number of episodes helps
            return f"{why}; {again}"
        return f"{why}; allow {more:,} episodes with --episodes, or {again}"
    return f"{why}; {again}"


def after(certificate: Certificate) -> str:
    """What to do after an attempt without a certificate: there is no error left for another."""
    c = certificate
    certified = max(0, c.certify_at[-1]) / c.looks[-1]
    share = LOWER * certified * c.episodes / max(1, c.outages)
    lower = c.trained_probability * min(LOWER, max(LOWEST, share))
    found = "These episodes cannot tell" if c.verdict == "undecided" else "The policy does not keep the promise"
    return f"{found}; train anew in another folder with --promise {c.probability:g} --outage {lower:.2g}."
