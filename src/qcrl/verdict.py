"""The last words of a training: was the outage kept that was asked for, in plain language."""

import numpy as np

from qcrl import stats
from qcrl.envs.base import Environment
from qcrl.envs.host import Host
from qcrl.evaluation import run_episodes
from qcrl.runs import Lane, Run

MOST_EPISODES = 1000
"""Fresh episodes per setting, over all seeds together; fewer where they would take over a tenth of the training."""
FEWEST_EPISODES = 10
"""With fewer fresh episodes per seed than this, the last ones of the training say more."""


def verdict(run: Run, env: Environment | Host) -> str:
    """Outage reached against asked for, with its exact interval, and return: one paragraph per setting."""
    frozen = run.frozen
    settings = dict.fromkeys(lane[1:] for lane in run.lanes if lane not in frozen)
    groups = [[lane for lane in run.lanes if lane[1:] == setting and lane not in frozen] for setting in settings]
    lost = [f"{lane} turned non-finite and was frozen; its last good policy is kept." for lane in frozen]
    return "\n".join([*(_judge(run, env, lanes) for lanes in groups), *lost])


def _judge(run: Run, env: Environment | Host, lanes: list[Lane]) -> str:
    _, probability, limit, *_ = lanes[0]
    asked = f"Asked for: at most {probability:g} of episodes cost more than {limit:g}"
    if lanes[0].learning_rate is not None:
        asked = f"Learning rate {lanes[0].learning_rate:g}. {asked}"
    if run.config["constraint"] != "Outage":
        asked += f" (but trained under {run.config['constraint']})"
    returns, costs, kind = _episodes(run, env, lanes)
    if not costs.size:
        return f"{asked}. No episode has ended yet: train for more steps."
    over = costs > limit
    outages, episodes = int(over.sum()), over.size
    low, high = stats.outage_interval(outages, episodes)
    if high <= probability:
        judgement = "kept"
    elif low > probability:
        judgement = "broken"
    else:
        judgement = f"neither kept nor broken as far as {episodes:,} episodes can tell"
    shares = over.mean(axis=1)
    seeds = f", from {shares.min():.3f} to {shares.max():.3f} over {len(lanes)} seeds" if len(lanes) > 1 else ""
    return (
        f"{asked}. Reached: {outages / episodes:.3f} ({outages:,} of {episodes:,} {kind}; exact 95% interval "
        f"{low:.3f} to {high:.3f}{seeds}). The outage constraint is {judgement}. "
        f"{_own(run.config['constraint'], costs, probability, limit)}"
        f"Mean return {returns.mean():.2f}, mean cost {costs.mean():.2f}."
    )


def _own(constraint: str, costs: np.ndarray, probability: float, limit: float) -> str:
    """Whether the constraint was kept that was trained under, where that is another."""
    if constraint == "Outage":
        return ""
    value = costs.mean() if constraint == "Mean" else stats.cvar(costs.ravel(), probability)
    return f"Its own, {constraint} at most {limit:g}, is {'kept' if value <= limit else 'broken'} ({value:.2f}). "


def _episodes(run: Run, env: Environment | Host, lanes: list[Lane]) -> tuple[np.ndarray, np.ndarray, str]:
    """Returns and costs, [lane, episode], and what episodes they are of."""
    count = min(-(-MOST_EPISODES // len(lanes)), run.config["steps"] // (10 * env.horizon))
    if count >= FEWEST_EPISODES:
        seeds = [(lane.seed + 2**31) % 2**32 for lane in lanes]  # other episodes than those of the training
        results = [run_episodes(run.policy(*lane), env, count, seed) for lane, seed in zip(lanes, seeds)]
        returns, costs = np.swapaxes(results, 0, 1)
        return returns, costs, "fresh episodes"
    table = run.episodes
    rows = [
        np.flatnonzero(np.all([table[name] == value for name, value in lane._asdict().items()], axis=0))
        for lane in lanes
    ]
    shared = min(100, *map(len, rows))
    chosen = np.array([row[len(row) - shared :] for row in rows], int)
    return table["return"][chosen], table["cost"][chosen], "last training episodes"
