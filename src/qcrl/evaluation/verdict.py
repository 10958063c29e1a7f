"""The last words of a training: was the outage kept that was asked for, in plain language."""

import contextlib
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np

from qcrl import stats
from qcrl.constraints import Constraint, Outage, Together, any_over, exceeds
from qcrl.envs.base import Described
from qcrl.errors import BrokenEnvironment, WorkerFailure
from qcrl.evaluation.evaluate import results_of, trained_environment
from qcrl.runs.folder import Run, cost_column, load, rows_of
from qcrl.runs.jax_policy import JaxPolicy
from qcrl.runs.lane import Lane, by_setting
from qcrl.sampling.play import can_play, play
from qcrl.sampling.play.host import Crew
from qcrl.sampling.play.seeds import Played, Seed

MOST_EPISODES = 1000
"""Fresh episodes per setting, over all seeds together; fewer where they would take over a tenth of the training."""
FIRST_EPISODES, FEWEST_FIRST = 20, 5
"""In which the policy is still as good as random: at most a twentieth of the training, else its own first ones."""
DOUBT = 2.0
"""Standard errors by which a policy must earn more than that to be better."""
FEWEST_EPISODES = 10
"""With fewer fresh episodes per seed than this, the last ones of the training say more."""


def verdict(run: Run | str | Path, env: Any = None, workers: int = 0, step_timeout: float = 60.0) -> str:
    """Outage reached against asked for, with its exact interval, and return: one paragraph per setting.

    env: the environment, as for `train`, where the run was trained on one of your own that has no id.
    workers, step_timeout: as for `train`. Where it breaks all the same, episodes of the training are judged.
    """
    run = run if isinstance(run, Run) else load(run)
    env = env if hasattr(env, "observation_size") else trained_environment(run, env)
    frozen = run.frozen
    env = env.with_costs(run.config["environment"]["costs"]) if hasattr(env, "with_costs") else env
    groups = by_setting([judged for lane in run.lanes if lane not in frozen for judged in lane.judged()])
    lost = [f"{lane} turned non-finite and was frozen; its last good policy is kept." for lane in frozen]
    with closing(Crew(workers, step_timeout)) as crew:
        return "\n".join([*(_judge(run, env, lanes, crew) for lanes in groups), *lost])


def _judge(run: Run, env: Described, lanes: list[Lane], crew: Crew) -> str:
    trained, outage = lanes[0].constraint, Outage(lanes[0].limit, lanes[0].probability, lanes[0].constraint.cost)
    together = len(lanes[0].constraints) > 1
    asked = f"Asked for: {Together(lanes[0].constraints).words if together else outage.words}"
    if lanes[0].learning_rate is not None:
        asked = f"Learning rate {lanes[0].learning_rate:g}. {asked}"
    if trained != outage and not together:
        asked += f" (but trained under {type(trained).__name__})"
    returns, every, kind = _episodes(run, env, lanes, crew)
    costs, learned = every[trained.cost], _beside_the_start(run, env, lanes, crew, returns)
    if not costs.size:
        return f"{asked}. No episode has ended yet: train for more steps."
    if together:
        judged = " ".join(_one_of_several(each, every[each.cost], kind) for each in lanes[0].constraints)
        return f"{asked}. {judged}{_any_over(lanes[0], every)} Mean return {returns.mean():.2f}.{learned}"
    over = exceeds(costs, outage.limit)
    outages, episodes = int(over.sum()), over.size
    low, high = stats.outage_interval(outages, episodes)
    shares = over.mean(axis=1)
    seeds = f", from {shares.min():.3f} to {shares.max():.3f} over {len(lanes)} seeds" if len(lanes) > 1 else ""
    own = ""
    if trained != outage:
        judged = f"{trained.judge(costs.ravel())} ({trained.measure(costs.ravel()):.2f})"
        own = f"Its own constraint, that {trained.words}, is {judged}. "
    spent = f" (of the episodes over the limit {costs[over].mean():.2f})" if outages else ""
    return (
        f"{asked}. Reached: {outages / episodes:.3f} ({outages:,} of {episodes:,} {kind}; exact 95% interval "
        f"{low:.3f} to {high:.3f}{seeds}). The outage constraint is {outage.judge(costs.ravel())}. {own}"
        f"Mean return {returns.mean():.2f}, mean cost {costs.mean():.2f}{spent}.{learned}"
    )


def _beside_the_start(run: Run, env: Described, lanes: list[Lane], crew: Crew, returns: np.ndarray) -> str:
    """What to say where policies earn no more, or not clearly more, than before the training, when they knew nothing.

    Where those broke a constraint, less return may be the price of keeping it.
    """
    start, costs, kind = _start(run, env, lanes, crew)
    if not start.size or np.ptp(np.append(start, returns)) == 0:
        return ""
    gain = returns.mean() - start.mean()
    if gain > DOUBT * np.sqrt(sum(each.var() / each.size for each in (start, returns))):
        return ""
    earned, more = f"{start.mean():.2f} in {kind}", gain > 0
    found = [(each, each.measure(costs[each.cost])) for each in lanes[0].constraints]
    broken = [f"{value:.3g} where {each.bound:g} is allowed" for each, value in found if value > each.bound]
    if broken:
        less = "hardly" if more else "no"
        return f" Random actions earned {less} less, {earned}, but they broke the constraint: {', '.join(broken)}."
    return (
        f" That is {'hardly' if more else 'no'} better than random actions, {earned}, which kept the constraint as "
        f"well: {'little or nothing' if more else 'nothing'} was learned; train for more steps, or allow more."
    )


def _start(run: Run, env: Described, lanes: list[Lane], crew: Crew) -> tuple[np.ndarray, dict[str, np.ndarray], str]:
    """Returns, and costs by name, of policies that know nothing yet, and what episodes they are of."""
    table = run.episodes
    trained = [rows_of(table, lane.columns) for lane in lanes]
    rows = np.concatenate([own[:FIRST_EPISODES] for own in trained])
    if not env.fixed_length and can_play(env) and trained[0].size:
        # The first episodes to end are the short ones, and where they are long, much was learned before they ended.
        length = max(table["env_steps"][own[-1]] / own.size for own in (trained[0][:FIRST_EPISODES], trained[0]))
        count = min(FIRST_EPISODES, int(run.config["steps"] / 20 / length))
        if count >= FEWEST_FIRST:
            with contextlib.suppress(BrokenEnvironment, WorkerFailure):
                untrained = [_untrained(run.policy_of(lane), lane) for lane in lanes]
                returns, every = _played(env, lanes, untrained, count, crew)
                return returns, {name: each.ravel() for name, each in every.items()}, "episodes of the untrained policy"
    every = {name: cost_column(table, env.costs, name)[rows] for name in env.costs}
    return table["return"][rows], every, "the first episodes of the training"


def _untrained(policy: JaxPolicy, lane: Lane) -> JaxPolicy:
    """As it was before the first step."""
    algorithm, env = policy.trained_by, policy.env
    constraints = (lane.trained or lane).constraints
    # Compiled, or a replay would be made that nobody looks at.
    state = jax.jit(lambda key: algorithm.policy_state(env, algorithm.init(env, key, constraints)))
    fresh = JaxPolicy(algorithm, env, state(jax.random.key(lane.seed)), policy.info)
    return fresh if lane.trained is None else fresh.at(lane.limit, lane.probability)


def _one_of_several(constraint: Constraint, costs: np.ndarray, kind: str) -> str:
    over = exceeds(costs, constraint.limit)
    spent = f", of those over the limit {costs[over].mean():.2f}" if over.any() else ""
    return (
        f"That {constraint.words} is {constraint.judge(costs.ravel())}: {constraint.measure(costs.ravel()):.4g} in "
        f"{costs.size:,} {kind}, mean cost {costs.mean():.2f}{spent}."
    )


def _any_over(lane: Lane, every: dict[str, np.ndarray]) -> str:
    over = any_over(lane.constraints, every)
    return "" if over is None else f" Over any of the limits: {over.mean():.3f}."


def _episodes(run: Run, env: Described, lanes: list[Lane], crew: Crew) -> tuple[np.ndarray, dict[str, np.ndarray], str]:
    """Returns, and costs by name, [lane, episode], and what episodes they are of."""
    kind = "last training episodes"
    count = min(-(-MOST_EPISODES // len(lanes)), run.config["steps"] // (10 * env.horizon))
    if lanes[0].trained is not None:  # training episodes are of all limits
        count = max(count, FEWEST_EPISODES)
    if count >= FEWEST_EPISODES:
        try:
            return *_played(env, lanes, [run.policy_of(lane) for lane in lanes], count, crew), "fresh episodes"
        except (BrokenEnvironment, WorkerFailure) as error:
            if lanes[0].trained is not None:
                raise
            kind += f", as in fresh ones {error}"
    table = run.episodes
    rows = [rows_of(table, lane.columns) for lane in lanes]
    shared = min(100, *map(len, rows))
    chosen = np.array([row[len(row) - shared :] for row in rows], int)
    every = {name: cost_column(table, env.costs, name)[chosen] for name in env.costs}
    return table["return"][chosen], every, kind


def _played(
    env: Described, lanes: list[Lane], policies: list[JaxPolicy], count: int, crew: Crew
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    # Other episodes than those of the training.
    jobs: list[tuple[Played, Seed]] = [(policy, (lane.seed + 2**31) % 2**32) for policy, lane in zip(policies, lanes)]
    results = [results_of(lane, env, each) for lane, each in zip(lanes, play(jobs, env, count, crew=crew))]
    every = {name: np.array([each.every[name] for each in results]) for name in env.costs}
    return np.array([each.returns for each in results]), every
