"""Runs an environment through what training relies on, with random actions, and looks at what its episodes cost."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qcrl.envs import ENVIRONMENT_IDS
from qcrl.envs.host import costs
from qcrl.envs.host.costs import CostFunction, CostSource, Info
from qcrl.envs.host.environment import maker
from qcrl.envs.host.spaces import check_observations, describe_actions, flatten
from qcrl.errors import UserError
from qcrl.kinds import GymEnv, GymSpace, Tree

EPISODES, STEPS = 20, 20_000
"""How much is looked at: so many episodes, unless that takes more steps."""
REPLAYED = 200
"""Steps that are compared between two runs of the same seed."""
LEVELS = (0.5, 0.75, 0.9)


class Check(NamedTuple):
    """One thing that training relies on: whether it holds, None where this cannot be told, and what was seen."""

    name: str
    holds: bool | None
    seen: str


@dataclass(frozen=True)
class Report:
    """What was found, and the totals of the whole episodes that were run."""

    environment: str
    checks: list[Check]
    returns: np.ndarray
    costs: np.ndarray
    lengths: np.ndarray

    @property
    def passed(self) -> bool:
        return all(check.holds is not False for check in self.checks)


class Episode(NamedTuple):
    """What a random policy met with. A cost is None where there was none."""

    obs: list[Tree]
    rewards: list[float]
    costs: list[float | None]
    terminated: bool
    truncated: bool
    reset_info: Info

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


def check_env(
    env: str | GymEnv,
    cost: str | CostFunction | None = None,
    episodes: int = EPISODES,
    steps: int = STEPS,
    seed: int = 0,
) -> Report:
    """Check an environment: an id, a function that makes it, or an instance. `cost` is as for `qcrl.train`."""
    if episodes < 1 or steps < 1:
        raise UserError(f"episodes is {episodes} and steps {steps}, but each must be at least 1")
    make, name = _factory(env)
    first = make()
    checks = [_check_spaces(first, name)]
    if checks[0].holds is False:
        return Report(name, checks, *np.zeros((3, 0)))
    source, found = _find_cost(first, costs.parse(cost), name)
    checks.append(found)
    played = list(_play_all(first, source, episodes, steps, seed))
    if found.holds:
        checks += _check_costs(played, source)
    checks.append(_check_numbers(played, first.observation_space))
    again, other = (_play(each, source, seed, REPLAYED) for each in (first, make()))
    reference = _play(make(), source, seed, REPLAYED)
    reproduced = _same(reference, other)
    checks.append(Check("seeds reproduce", reproduced, "the same seed and actions, twice, gave " + _alike(reproduced)))
    checks.append(_check_reset(reference, again, reproduced, played, source))
    checks += _check_ends(played, first, steps)
    whole = [each for each in played if each.ended]
    lengths = np.array([len(each.rewards) for each in whole], int)
    returns = np.array([sum(each.rewards) for each in whole])
    totals = np.array([sum(float(cost or 0) for cost in each.costs) for each in whole])
    return Report(name, checks, returns, totals if found.holds else totals[:0], lengths)


def suggestions(report: Report) -> list[str]:
    """What the costs of random actions say about limits and scales."""
    if not report.costs.size:
        return ["No episode with costs has ended: no limit can be suggested."]
    values = np.quantile(report.costs, LEVELS)
    shown = ", ".join(f"{100 * level:.0f}% {value:.4g}" for level, value in zip(LEVELS, values))
    lines = [
        f"Cost of {report.costs.size} episodes with random actions: mean {report.costs.mean():.4g}, quantiles {shown}, "
        f"highest {report.costs.max():.4g}."
    ]
    if not report.costs.any():
        return [*lines, "Random actions cost nothing, so they say nothing about limits: take one from what costs mean."]
    at = [f"{value:.4g} (exceeded by {np.mean(report.costs > value):.2f} of them)" for value in np.unique(values)]
    lines.append(f"Limits to begin with: {', '.join(at)}. A trained policy may cost more or less than random actions.")
    step = np.abs(report.returns).sum() / report.lengths.sum()
    horizon = min(100.0, report.lengths.mean())
    lines.append(
        f"Scales for the learner: --reward-scale {_round(step * horizon)} --cost-scale {_round(report.costs.mean())}."
    )
    return lines


def _factory(env: str | GymEnv) -> tuple[Callable[[], GymEnv], str]:
    if isinstance(env, str):
        return maker(f"qcrl/{env}" if env in ENVIRONMENT_IDS else env), env
    if not isinstance(env, type) and hasattr(env, "step"):
        if not hasattr(env, "observation_space") or hasattr(env, "num_envs"):
            raise UserError(f"{env!r} cannot be checked; give a Gymnasium environment, or the function that makes it")
        return lambda: env, str(env)
    return env, getattr(env, "__name__", str(env))


def _check_spaces(env: GymEnv, name: str) -> Check:
    try:
        actions, size = describe_actions(getattr(env, "action_space", None), name)
        observed = check_observations(getattr(env, "observation_space", None), name)
    except UserError as error:
        return Check("spaces can be trained", False, str(error))
    kind = f"{size} choices" if actions.discrete else f"{size} numbers"
    return Check("spaces can be trained", True, f"{observed} observed numbers, actions of {kind}")


def _find_cost(env: GymEnv, given: CostSource | None, name: str) -> tuple[CostSource, Check]:
    env.reset(seed=0)
    env.action_space.seed(0)
    values = env.step(env.action_space.sample())
    try:
        source = costs.find(values[-1], len(values), name) if given is None else given
    except UserError as error:
        return CostSource("cost"), Check("a place for the cost", False, str(error))
    return source, Check("a place for the cost", True, f"{source}, {'found' if given is None else 'as given'}")


def _play(env: GymEnv, source: CostSource, seed: int | None, limit: int) -> Episode:
    """One episode, or its first steps. The same seed gives the same actions."""
    obs, reset_info = env.reset(seed=seed)
    env.action_space.seed(seed)
    episode = Episode([obs], [], [], False, False, reset_info)
    for _ in range(limit):
        action = env.action_space.sample()
        next_obs, reward, *third, terminated, truncated, info = env.step(action)
        episode.costs.append(source.raw(obs, action, next_obs, info, third[0] if third else None))
        episode.obs.append(next_obs)
        episode.rewards.append(float(reward))
        obs = next_obs
        if terminated or truncated:
            return episode._replace(terminated=bool(terminated), truncated=bool(truncated))
    return episode


def _play_all(env: GymEnv, source: CostSource, episodes: int, steps: int, seed: int) -> Iterator[Episode]:
    for number in range(episodes):
        episode = _play(env, source, seed + number, steps)
        yield episode
        steps -= len(episode.rewards)
        if steps <= 0:
            return


def _check_costs(played: list[Episode], source: CostSource) -> Iterator[Check]:
    numbered = [(e, s, cost) for e, episode in enumerate(played) for s, cost in enumerate(episode.costs, 1)]
    tests: list[tuple[str, Callable[[float | None], bool]]] = [
        ("every step has a cost", lambda cost: cost is not None),
        ("costs are finite", lambda cost: cost is None or bool(np.isfinite(cost))),
        ("costs are not negative", lambda cost: cost is None or not cost < 0),
    ]
    for name, holds in tests:
        bad = [entry for entry in numbered if not holds(entry[2])]
        seen = f"{len(numbered):,} steps"
        if bad:
            seen = f"{source} was {bad[0][2]} in {len(bad)} of {seen}, first in episode {bad[0][0]}, step {bad[0][1]}"
        yield Check(name, not bad, seen)


def _check_numbers(played: list[Episode], space: GymSpace) -> Check:
    name = "observations and rewards are numbers, as the spaces say"
    for number, episode in enumerate(played):
        for step, obs in enumerate(episode.obs):
            if not space.contains(obs):
                return Check(name, False, f"{obs} is not in {space}: episode {number}, step {step}")
        if not np.isfinite(episode.rewards).all():
            return Check(name, False, f"a reward of episode {number} is not finite")
        if not all(np.isfinite(flatten(space, obs)).all() for obs in episode.obs):
            return Check(name, False, f"an observation of episode {number} is not finite")
    return Check(name, True, f"{len(played)} episodes")


def _check_reset(
    reference: Episode, again: Episode, reproduced: bool, played: list[Episode], source: CostSource
) -> Check:
    name = "reset clears the cost"
    left = [episode.reset_info.get(source.key) for episode in played] if source.key is not None else []
    if any(left):
        return Check(name, False, f"{source} is {next(filter(None, left))} right after a reset")
    if not reproduced:
        return Check(name, None, "cannot be told while seeds do not reproduce")
    same = reference.costs == again.costs
    return Check(name, same, f"a fresh and a used environment, reset with the same seed, gave {_alike(same)}")


def _check_ends(played: list[Episode], env: GymEnv, steps: int) -> Iterator[Check]:
    whole = [episode for episode in played if episode.ended]
    lengths = [len(episode.rewards) for episode in whole]
    if not whole:
        yield Check("episodes end", False, f"none has ended within {steps:,} steps; give it a time limit")
        return
    spread = f"{min(lengths)} to {max(lengths)} steps, {np.median(lengths):g} in the median"
    yield Check("episodes end", True, f"{len(whole)} episodes of {spread}")
    name = "time limits are reported as truncated"
    limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    cut = sum(episode.truncated for episode in whole)
    if limit is not None and max(lengths) >= limit:
        silent = sum(n >= limit and not episode.truncated for n, episode in zip(lengths, whole))
        yield Check(name, not silent, f"{silent} of the episodes of {limit} steps, the limit, were not truncated")
    elif cut or min(lengths) < max(lengths) or len(whole) < 2:
        yield Check(name, True if cut else None, f"{cut} of {len(whole)} episodes were truncated")
    else:
        seen = f"every episode is terminated after {lengths[0]} steps; if that is a time limit, report it as truncated"
        yield Check(name, None, seen)


def _same(one: Episode, two: Episode) -> bool:
    pairs = zip(one.obs, two.obs)
    equal = len(one.obs) == len(two.obs) and one.rewards == two.rewards and one.costs == two.costs
    return equal and all(_equal(a, b) for a, b in pairs)


def _equal(a: Tree, b: Tree) -> bool:
    if isinstance(a, dict):
        return all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return all(map(_equal, a, b))
    return np.array_equal(a, b)


def _alike(same: bool) -> str:
    return "the same" if same else "something else"


def _round(value: float) -> str:
    """One significant digit, or 1 where there is nothing to scale by."""
    return f"{float(f'{value:.0e}'):g}" if value > 0 else "1"
