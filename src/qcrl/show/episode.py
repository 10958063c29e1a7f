"""Episodes of a trained policy, recorded step by step for films and replays, with the critic's view of the outage."""

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from qcrl.algos.outage_ppo import OutagePPO, OutageProbability
from qcrl.algos.quantile_advantage import CostDistribution
from qcrl.constraints import exceeds
from qcrl.envs import ENVIRONMENT_IDS
from qcrl.envs.base import ONE_COST
from qcrl.envs.host.environment import HostEnv, open_host
from qcrl.envs.host.filmed import Picture, filmed
from qcrl.envs.point.pictures import Scene, TwoPathScene
from qcrl.errors import UserError
from qcrl.quantiles import grid
from qcrl.runs.jax_policy import JaxPolicy
from qcrl.sampling.play.host import Crew, Moment, play_on_host
from qcrl.stats import check_episodes
from qcrl.tails import rate

SEED = [0, *b"show"]
"""Of all episodes that are shown."""
Seen = Scene | TwoPathScene | Picture
"""What a moment looks like."""
CHOICES = ("median", "worst", "first")
"""Which of several episodes: by cost, and by return where costs are equal."""


class Episode(NamedTuple):
    """A recorded episode: step 0 is its start, before any action."""

    number: int
    scenes: Sequence[Seen]
    returns: Float[np.ndarray, " steps"]
    """Sum of rewards so far."""
    costs: Float[np.ndarray, " steps"]
    """Sum of costs so far."""
    outage: Float[np.ndarray, " steps"] | None
    """The critic's estimate, before each step, that the cost will end over the limit; at the end, whether it did."""
    estimate_of: str = ""
    """What the estimate is about, where that is not the constraint itself."""


def record(
    policy: JaxPolicy,
    limit: float,
    number: int = 0,
    engine: str = "jax",
    deterministic: bool = False,
    env: HostEnv | None = None,
) -> Episode:
    """One episode; the same number gives the same episode. `env` is what it runs in, where that is none of qcrl's."""
    scenes: list[Seen] = []
    rewards, costs, outage = [], [], []
    kind = _kind(policy)
    estimate = outage_estimator(policy, limit)

    def watch(moment: Moment) -> None:
        rewards.append(float(moment.inputs.previous_reward[0]))
        costs.append(float(moment.inputs.previous_cost[0, kind]))
        if estimate is not None:
            outage.append(estimate(jax.tree.map(lambda x: x[0], moment), sum(costs)))

    watched = _environment(policy, engine, scenes) if env is None else filmed(env, scenes.append)
    play_on_host(policy, watched, [number], SEED, deterministic, watch=watch)
    if outage:
        # Nothing is to come, and the critic was never asked about that.
        outage[-1] = float(exceeds(np.array(sum(costs)), limit))
    shown = scenes[-1 - len(costs) : -1]  # the last one is of the episode that would follow
    about = "" if isinstance(policy.trained_by, OutagePPO) else "of the discounted cost to go"
    seen = np.array(outage) if outage else None
    return Episode(number, shown, np.cumsum(rewards), np.cumsum(costs), seen, about)


def choose(
    policy: JaxPolicy,
    which: Sequence[str],
    episodes: int,
    engine: str = "jax",
    deterministic: bool = False,
    progress: Callable[[int], None] = lambda done: None,
    env: HostEnv | None = None,
    workers: int = 0,
) -> list[int]:
    """Numbers of the first, the worst (highest cost, then lowest return) or the median episode in that order.

    With `workers` they are run side by side in so many processes, where the environment runs in Python.
    """
    if workers < 0 or (workers and env is None):
        raise UserError(f"workers is {workers}, but {policy.env.id} needs none; leave it out")
    for name in which:
        if name not in CHOICES:
            raise UserError(f"episode is {name!r}; choose one of {', '.join(CHOICES)}")
    check_episodes(episodes)
    count, done = episodes if set(which) != {"first"} else 1, 0

    def tell(more: float) -> None:
        nonlocal done
        done += round(more)
        progress(done)

    # One after the other, as they are recorded: side by side, rounding would make other episodes of them.
    played = _environment(policy, engine) if env is None else env
    with closing(Crew(workers)) as crew:
        given = policy, played, count, SEED, deterministic, tell, crew
        totals = play_on_host(*given, side_by_side=max(1, workers))
    ranks = zip(totals.costs[:, _kind(policy)].tolist(), (-totals.returns).tolist(), range(count))
    ordered = [number for *_, number in sorted(ranks)]
    found = {"first": 0, "worst": ordered[-1], "median": ordered[(len(ordered) - 1) // 2]}
    return [found[name] for name in which]


def _environment(policy: JaxPolicy, engine: str, scenes: list[Seen] | None = None) -> HostEnv:
    """The policy's task on either engine, stepped in Python; what it looks like goes to `scenes`."""
    from qcrl.envs.adapters.gym import GymEnv, gym_key

    env_id = policy.env.id
    if env_id not in ENVIRONMENT_IDS:
        raise UserError(f"{env_id} cannot be drawn; only {', '.join(ENVIRONMENT_IDS)} can")
    make = lambda: GymEnv(env_id, engine, watch=None if scenes is None else scenes.append)
    names = policy.env.costs
    return open_host(make, None if names == ONE_COST else {name: gym_key(name) for name in names})


def _kind(policy: JaxPolicy) -> int:
    """Which of the costs is shown: the one that the first constraint is about."""
    return policy.env.costs.index(policy.constraint.cost) if len(policy.env.costs) > 1 else 0


def outage_estimator(policy: JaxPolicy, limit: float) -> Callable[[Moment, float], float] | None:
    """A function of the moment and of the cost so far; None where the critic knows no distribution.

    Outage-PPO's critic is asked for just that. QCPO's gives Pr(discounted cost to go > limit - cost so far). Such a sum
    is never larger than the plain one that the limit is about, so a perfect critic gives a lower bound of the true
    probability; far from the end of a long episode it speaks of the next 1 / (1 - discount) steps only.
    """
    critic = jax.jit(partial(policy.algorithm.critic, policy.env))
    blank = policy.inputs(np.zeros(policy.env.observation_size, np.float32), policy.initial())
    if not isinstance(critic(policy.state, blank, policy.initial().memory), CostDistribution | OutageProbability):
        return None

    def estimate(moment: Moment, spent: float) -> float:
        if exceeds(np.array(spent), limit):
            return 1.0
        seen = jax.device_get(critic(policy.state, moment.inputs, moment.memory))
        if isinstance(seen, OutageProbability):
            return float(seen.value)
        return exceedance(seen.quantiles, limit - spent, float(seen.tail.shape))

    return estimate


def exceedance(quantiles: Float[np.ndarray, " grid"], threshold: float, tail_shape: float) -> float:
    """Pr(cost to go > threshold): the level at which `quantiles.at_level` gives the threshold, from 1."""
    ordered, levels = np.sort(np.asarray(quantiles, float)), grid(len(quantiles)).astype(float)
    if threshold < ordered[0]:
        return 1.0
    if threshold > ordered[-1]:
        return float(np.exp(-float(rate(levels[-1])) * (threshold / ordered[-1]) ** tail_shape))
    return float(1 - np.interp(threshold, ordered, levels))
