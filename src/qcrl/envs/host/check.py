"""Runs an environment through what training relies on, with random actions, and looks at what its episodes cost."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from qcrl.envs import ENVIRONMENT_IDS, TASKS
from qcrl.envs.host import boundary, costs
from qcrl.envs.host.boundary import RawStep, Single
from qcrl.envs.host.costs import Costs, CostSource, Info
from qcrl.envs.host.environment import find_masks, maker, time_limit
from qcrl.envs.host.products import Product
from qcrl.envs.host.seeds import REPEATS, Seeded, obeying
from qcrl.envs.host.spaces import check_observations, describe_actions, flatten, random_actions
from qcrl.envs.host.values import copied, number, shown
from qcrl.errors import BrokenEnvironment, UserError
from qcrl.kinds import GymEnv, GymSpace, Tree

EPISODES, STEPS = 20, 20_000
"""How much is looked at: so many episodes, unless that takes more steps."""
REPLAYED = 200
"""Steps that are compared between two runs of the same seed."""


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
    every: Mapping[str, np.ndarray] = field(default_factory=dict)
    """All costs by name; `costs` are the first."""
    ignored: tuple[str, ...] = ()
    """What the environment reports and training pays no attention to."""

    @property
    def passed(self) -> bool:
        return all(check.holds is not False for check in self.checks)


class Episode(NamedTuple):
    """What a random policy met with. A step has a cost from every source, None where there was none."""

    obs: list[Tree]
    rewards: list[float]
    costs: list[tuple[object, ...]]
    terminated: bool
    truncated: bool
    reset_info: Info

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


def check_env(
    env: str | GymEnv,
    cost: Costs = None,
    episodes: int = EPISODES,
    steps: int = STEPS,
    seed: int = 0,
) -> Report:
    """Check an environment: an id, a function that makes it, or an instance. `cost` is as for `qcrl.train`."""
    if episodes < 1 or steps < 1:
        raise UserError(f"episodes is {episodes} and steps {steps}, but each must be at least 1")
    if cost is None and isinstance(env, str) and env in TASKS:
        cost = {each: "cost" if each == "cost" else f"cost_{each}" for each in TASKS[env].costs}
    source = costs.parse(cost)
    make, name = _factory(env)
    checks: list[Check] = []
    try:
        with boundary.surrounded(name):
            return _check_all(make, name, source, episodes, steps, seed, checks)
    except BrokenEnvironment as error:
        return Report(name, [*checks, Check("runs without an error", False, str(error))], *np.zeros((3, 0)))


def _check_all(
    make: Callable[[], GymEnv],
    name: str,
    given: CostSource | None,
    episodes: int,
    steps: int,
    seed: int,
    checks: list[Check],
) -> Report:
    """What was found before an environment broke stays in `checks`."""
    first = boundary.make(make, name)
    checks.append(_check_spaces(first, name))
    if checks[0].holds is False:
        return Report(name, checks, *np.zeros((3, 0)))
    source, found, ignored = _find_cost(Single(first, CostSource(), name), given)
    checks.append(found)
    second, third = boundary.make(make, name), boundary.make(make, name)
    obedient, repeats = make, False
    if second is not first:
        obedient, repeats = obeying(make, Single(first, source, name, find_masks(first, name)))
    by_hand = obedient is not make
    if by_hand:
        first, second, third = map(Seeded, (first, second, third))
    played = list(_play_all(Single(first, source, name), episodes, steps, seed))
    if found.holds:
        checks += _check_costs(played, source)
    checks.append(_check_numbers(played, first.observation_space))
    again, other, reference = (_play(Single(env, source, name), seed, REPLAYED) for env in (first, second, third))
    reproduced = _same(reference, other)
    how = ", once its random generators were given the seed, which it ignores" if by_hand else ""
    seen = f"the same seed and actions, twice, gave {_alike(reproduced)}{how}"
    if repeats and not _equal(reference[:2], again[:2]):  # where only costs differ, a reset may not clear them
        reproduced, seen = False, REPEATS
    checks.append(Check("seeds reproduce", reproduced, seen))
    checks.append(_check_reset(reference, again, reproduced, played, source))
    checks += _check_ends(played, first, steps)
    if second is not first:  # an object stays its owner's
        for made in (first, second, third):
            boundary.close(made, name)
    whole = [each for each in played if each.ended]
    lengths = np.array([len(each.rewards) for each in whole], int)
    returns = np.array([sum(each.rewards) for each in whole])
    sums = [[sum(_value(cost) or 0.0 for cost in column) for column in zip(*each.costs)] for each in whole]
    totals = np.array(sums if found.holds else [], float).reshape(-1, len(source.names))
    every = dict(zip(source.names, totals.T))
    return Report(name, checks, returns, every[source.names[0]], lengths, every, ignored)


def _factory(env: str | GymEnv) -> tuple[Callable[[], GymEnv], str]:
    if isinstance(env, str):
        return maker(f"qcrl/{env}" if env in ENVIRONMENT_IDS else env), env
    if not isinstance(env, type) and hasattr(env, "step"):
        if not hasattr(env, "observation_space") or hasattr(env, "num_envs"):
            raise UserError(f"{env!r} cannot be checked; give a Gymnasium environment, or the function that makes it")
        return lambda: env, shown(env)
    if not callable(env):
        raise UserError(f"{shown(env)} cannot be checked; give a Gymnasium environment, or the function that makes it")
    return env, getattr(env, "__name__", shown(env))


def _check_spaces(env: GymEnv, name: str) -> Check:
    try:
        with boundary.guarded(name):
            spaces = getattr(env, "action_space", None), getattr(env, "observation_space", None)
        actions, size = describe_actions(spaces[0], name)
        observed = check_observations(spaces[1], name)
    except UserError as error:
        return Check("spaces can be trained", False, str(error))
    kind = f"{size} choices" if actions.discrete else f"{size} numbers"
    if isinstance(actions, Product):
        kind = f"{actions.numbers} numbers and {len(actions.choices)} choices"
    return Check("spaces can be trained", True, f"{observed} observed numbers, actions of {kind}")


def _find_cost(trial: Single, given: CostSource | None) -> tuple[CostSource, Check, tuple[str, ...]]:
    """Where costs are, whether that could be told, and what is not looked at."""
    trial.raw_reset(0)
    seen = trial.raw_step(_sample(trial, seed=0))
    try:
        source = costs.find(seen.info, seen.values, trial.name) if given is None else given
    except UserError as error:
        return CostSource("cost"), Check("a place for the cost", False, str(error)), ()
    how = f"{source}, {'found' if given is None else 'as given'}"
    return source, Check("a place for the cost", True, how), _ignored(source, seen)


def _ignored(source: CostSource, seen: RawStep) -> tuple[str, ...]:
    """Of a function nobody knows what it looks at, but a cost beside it is surely not seen."""
    keys = {each.key for each in source.each} | {"action_mask"}
    by_function = any(each.function is not None for each in source.each)
    kept = [key for key in seen.info if key not in keys and (key == "cost" or not by_function)]
    third = seen.values == 6 and all(each.key is not None or each.function is not None for each in source.each)
    return tuple(["the third of six values"] * third + [f'info["{key}"]' for key in kept])


def _sample(single: Single, seed: int | None = None) -> np.ndarray:
    with boundary.guarded(single.name, "has an action space that raised"):
        if seed is not None:
            single.env.action_space.seed(seed)
        return single.env.action_space.sample()


def _allowed(single: Single, mask: np.ndarray, seed: list[int]) -> np.ndarray:
    """A random action among those that the mask allows."""
    actions, size = describe_actions(single.env.action_space, single.name)
    return random_actions(actions, size, np.random.default_rng(seed), mask[None])[0]


def _play(single: Single, seed: int, limit: int) -> Episode:
    """One episode, or its first steps. The same seed gives the same actions."""
    reset_info = info = single.raw_reset(seed)
    actions = describe_actions(single.env.action_space, single.name)[0]
    episode = Episode([copied(single.obs)], [], [], False, False, reset_info)
    for step in range(limit):
        before = episode.obs[-1]
        with boundary.guarded(single.where, "has an action mask at which was raised"):
            mask = boundary.read_mask(single.env, info, actions)
        action = _sample(single, None if step else seed) if mask is None else _allowed(single, mask, [seed, step])
        seen = single.raw_step(action)
        info = seen.info
        with boundary.guarded(single.where, f"has a cost function ({single.source}) that raised"):
            known = before, action, seen.obs, seen.info, seen.third
            episode.costs.append(tuple(source.raw(*known) for source in single.source.each))
        episode.obs.append(copied(seen.obs))
        episode.rewards.append(seen.reward)
        if seen.terminated or seen.truncated:
            return episode._replace(terminated=seen.terminated, truncated=seen.truncated)
    return episode


def _play_all(single: Single, episodes: int, steps: int, seed: int) -> Iterator[Episode]:
    for count in range(episodes):
        episode = _play(single, seed + count, steps)
        yield episode
        steps -= len(episode.rewards)
        if steps <= 0:
            return


def _value(cost: object) -> float | None:
    """The cost as a number; None where it is none, or not finite."""
    try:
        return number(cost, "cost")
    except UserError:
        return None


def _check_costs(played: list[Episode], source: CostSource) -> Iterator[Check]:
    numbered = [
        (e, s, cost, which)
        for e, each in enumerate(played)
        for s, row in enumerate(each.costs, 1)
        for cost, which in zip(row, source.each)
    ]
    tests: list[tuple[str, Callable[[object], bool]]] = [
        ("every step has a cost", lambda cost: cost is not None),
        ("costs are finite", lambda cost: cost is None or _value(cost) is not None),
        ("costs are not negative", lambda cost: (_value(cost) or 0.0) >= 0),
    ]
    for name, holds in tests:
        bad = [entry for entry in numbered if not holds(entry[2])]
        seen = f"{len(numbered) // len(source.names):,} steps"
        if bad:
            episode, step, cost, which = bad[0]
            seen = f"{which} was {shown(cost)} in {len(bad)} of {seen}, first in episode {episode}, step {step}"
        yield Check(name, not bad, seen)


def _check_numbers(played: list[Episode], space: GymSpace) -> Check:
    name = "observations and rewards are numbers, as the spaces say"
    for count, episode in enumerate(played):
        for step, obs in enumerate(episode.obs):
            with boundary.guarded(f"episode {count}, step {step}"):
                inside = space.contains(obs)
            if not inside:
                return Check(name, False, f"{shown(obs)} is not in {space}: episode {count}, step {step}")
            try:
                flatten(space, obs)
            except UserError as error:
                return Check(name, False, f"{error}: episode {count}, step {step}")
    return Check(name, True, f"{len(played)} episodes")


def _check_reset(
    reference: Episode, again: Episode, reproduced: bool, played: list[Episode], source: CostSource
) -> Check:
    name = "reset clears the cost"
    for one in source.each:
        left = [_value(one.raw(None, None, None, each.reset_info, None)) for each in played if one.key is not None]
        if any(left):
            return Check(name, False, f"{one} is {next(filter(None, left))} right after a reset")
    if not reproduced:
        return Check(name, None, "cannot be told while seeds do not reproduce")
    same = _equal(reference.costs, again.costs)
    how = "" if same else ": a cost is kept from before, or drawn without the seed"
    return Check(name, same, f"a fresh and a used environment, reset with the same seed, gave {_alike(same)}{how}")


def _check_ends(played: list[Episode], env: GymEnv, steps: int) -> Iterator[Check]:
    whole = [episode for episode in played if episode.ended]
    lengths = [len(episode.rewards) for episode in whole]
    if not whole:
        yield Check("episodes end", False, f"none has ended within {steps:,} steps; give it a time limit")
        return
    spread = f"{min(lengths)} to {max(lengths)} steps, {np.median(lengths):g} in the median"
    yield Check("episodes end", True, f"{len(whole)} episodes of {spread}")
    name = "time limits are reported as truncated"
    limit, limited = time_limit(env)
    cut = sum(episode.truncated for episode in whole)
    if limited and max(lengths) >= limit:
        silent = sum(n >= limit and not episode.truncated for n, episode in zip(lengths, whole))
        yield Check(name, not silent, f"{silent} of the episodes of {limit} steps, the limit, were not truncated")
    elif cut or min(lengths) < max(lengths) or len(whole) < 2:
        yield Check(name, True if cut else None, f"{cut} of {len(whole)} episodes were truncated")
    else:
        seen = f"every episode is terminated after {lengths[0]} steps; if that is a time limit, report it as truncated"
        yield Check(name, None, seen)


def _same(one: Episode, two: Episode) -> bool:
    return all(_equal(a, b) for a, b in zip(one[:3], two[:3]))


def _equal(a: Tree, b: Tree) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(_equal, a, b))
    try:
        return bool(np.array_equal(a, b))
    except Exception:  # of objects that cannot be compared
        return False


def _alike(same: bool) -> str:
    return "the same" if same else "something else"
