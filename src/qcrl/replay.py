"""Episodes of a trained policy, recorded step by step for films and replays, with the critic's own view of the outage."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from qcrl.algos.quantile_advantage import CostDistribution
from qcrl.envs import ENVIRONMENT_IDS
from qcrl.envs.render import Scene, TwoPathScene
from qcrl.errors import UserError
from qcrl.policy import Carry, Policy
from qcrl.quantiles import grid
from qcrl.tails import rate

CHOICES = ("median", "worst", "first")
"""Which of several episodes: by cost, and by return where costs are equal."""


class Episode(NamedTuple):
    """A recorded episode: step 0 is its start, before any action."""

    number: int
    scenes: list[Scene | TwoPathScene]
    returns: Float[np.ndarray, " steps"]
    """Sum of rewards so far."""
    costs: Float[np.ndarray, " steps"]
    """Sum of costs so far."""
    outage: Float[np.ndarray, " steps"] | None
    """The critic's estimate, before each step, that the cost will end over the limit; at the end, whether it did."""


class Moment(NamedTuple):
    """What a policy has before it acts, or after the last step."""

    obs: np.ndarray
    carry: Carry
    reward: float
    cost: float


def record(policy: Policy, limit: float, number: int = 0, engine: str = "jax", deterministic: bool = False) -> Episode:
    """One episode; the same number gives the same episode."""
    env, estimate = _environment(policy, engine), outage_estimator(policy, limit)
    scenes, rewards, costs, outage = [], [], [], []
    for moment in _play(policy, env, number, deterministic):
        scenes.append(env.engine.scene())
        rewards.append(moment.reward)
        costs.append(moment.cost)
        if estimate is not None:
            outage.append(estimate(moment, sum(costs)))
    if outage:
        outage[-1] = float(sum(costs) > limit)  # nothing is to come, and the critic was never asked about that
    return Episode(number, scenes, np.cumsum(rewards), np.cumsum(costs), np.array(outage) if outage else None)


def choose(
    policy: Policy,
    which: Sequence[str],
    episodes: int,
    engine: str = "jax",
    deterministic: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> list[int]:
    """Numbers of the first, the worst (highest cost, then lowest return) or the median episode in that order."""
    for name in which:
        if name not in CHOICES:
            raise UserError(f"episode is {name!r}; choose one of {', '.join(CHOICES)}")
    if episodes < 1:
        raise UserError(f"episodes is {episodes}, but at least one is needed; give a larger number")
    env, ranks = _environment(policy, engine), []
    for number in range(episodes if set(which) != {"first"} else 1):
        moments = [(moment.cost, -moment.reward) for moment in _play(policy, env, number, deterministic)]
        ranks.append((*np.sum(moments, axis=0).tolist(), number))
        progress(number + 1)
    ordered = [number for *_, number in sorted(ranks)]
    found = {"first": 0, "worst": ordered[-1], "median": ordered[(len(ordered) - 1) // 2]}
    return [found[name] for name in which]


def _environment(policy: Policy, engine: str) -> Any:
    from qcrl.envs.gym import GymEnv

    id = policy.interface.id
    if id not in ENVIRONMENT_IDS:
        raise UserError(f"{id} cannot be drawn; only {', '.join(ENVIRONMENT_IDS)} can")
    return GymEnv(id, engine)


def _play(policy: Policy, env: Any, number: int, deterministic: bool) -> Iterator[Moment]:
    rng = np.random.default_rng(number)
    moment, done = Moment(env.reset(seed=number)[0], policy.initial(), 0.0, 0.0), False
    while not done:
        yield moment
        obs, carry, reward, cost = moment
        action, carry = policy(obs, carry, reward=reward, cost=cost, rng=rng, deterministic=deterministic)
        obs, reward, terminated, truncated, info = env.step(action)
        moment, done = Moment(obs, carry, reward, info["cost"]), terminated or truncated
    yield moment


def outage_estimator(policy: Policy, limit: float) -> Callable[[Moment, float], float] | None:
    """A function of the moment and of the cost so far; None where the critic knows no distribution.

    It is Pr(discounted cost to go > limit - cost so far). A discounted sum is never larger than the plain one that the
    limit is about, so a perfect critic gives a lower bound of the true probability; far from the end of a long
    episode it speaks of the next 1 / (1 - discount) steps only.
    """
    algorithm = policy.algorithm
    if not hasattr(algorithm, "critic"):
        return None
    critic = jax.jit(partial(algorithm.critic, policy.interface))

    def view(obs: Any, carry: Carry, reward: float, cost: float) -> Any:
        return critic(policy.state, carry.memory, obs, carry.action, np.float32(reward), np.float32(cost))

    start = Moment(np.zeros(policy.interface.observation_size, np.float32), policy.initial(), 0.0, 0.0)
    if not isinstance(view(*start), CostDistribution):
        return None

    def estimate(moment: Moment, spent: float) -> float:
        if spent > limit:
            return 1.0
        seen = jax.device_get(view(*moment))
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
