"""Before the first iteration: which lanes are trained, and whether what was asked for can work."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from operator import index

from qcrl.algos import replay_buffer
from qcrl.algos.algorithm import Algorithm, out_of_range
from qcrl.algos.find import DEFAULT_STEPS, default_preset, find, name_of
from qcrl.algos.multiplier import episode_window
from qcrl.constraints import Constraint, Outage, Together, together
from qcrl.envs import drawing as drawings
from qcrl.envs.base import ONE_COST, Described, suited_preset
from qcrl.errors import UserError
from qcrl.kinds import Settings
from qcrl.runs.lane import Lane, make_lane
from qcrl.sampling import program

MOST_LANES = 100_000
"""Each has a policy file of its own."""
Asked = Constraint | Together
"""What a lane may be asked for."""


def learning_rates(overrides: Settings) -> tuple[Settings, list[float]]:
    """The hyper-parameters, and apart from them the learning rates where several are to be trained side by side."""
    given = overrides.get("learning_rate")
    if not isinstance(given, list | tuple):
        return overrides, []
    if not given or not all(isinstance(rate, int | float) and rate > 0 and not out_of_range(rate) for rate in given):
        raise UserError(
            f"learning_rate is {given}, but each must be a finite number above 0; give one or a list of them"
        )
    rest = {name: value for name, value in overrides.items() if name != "learning_rate"}
    return rest | {"learning_rate": given[0]}, [float(rate) for rate in given] if len(given) > 1 else []


def lanes(
    algorithm: Algorithm,
    constraint: Asked | Sequence[Asked],
    seeds: int | Sequence[int],
    first_seed: int,
    rates: Sequence[float | None] = (),
) -> tuple[Lane, ...]:
    """Seeds x constraints x learning rates, in this order; the last only where there are several."""
    sides = [constraint] if isinstance(constraint, Asked) else constraint
    if not isinstance(sides, Sequence) or isinstance(sides, str) or not all(isinstance(each, Asked) for each in sides):
        raise UserError(f"the constraint is {constraint!r}, but must be one such as qcrl.Outage(15, 0.1), or a list")
    asked = list(map(together, sides))
    if not asked:
        raise UserError("no constraint was given; give at least one, such as qcrl.Outage(limit=15, probability=0.1)")
    settings = [(all_trained_under(algorithm, each), each[0]) for each in asked]
    if len({tuple((type(one), one.cost, one.ranged) for one in each) for each, _ in settings}) > 1:
        raise UserError(
            "constraints that are trained side by side must be of the same kinds and on the same costs, in the same "
            "order; train the others apart"
        )
    per_seed = len(settings) * max(1, len(rates))
    try:
        given = seeds if isinstance(seeds, Iterable) else range(first_seed, first_seed + index(seeds))
        listed = list(map(index, islice(given, MOST_LANES // per_seed + 1)))
    except TypeError:
        listed = []
    if len(listed) * per_seed > MOST_LANES:
        raise UserError(f"seeds is {seeds}, but a run trains at most {MOST_LANES:,} lanes together; give fewer seeds")
    if not listed or min(listed) < 0 or max(listed) >= 2**32:
        raise UserError(
            f"seeds is {seeds} and first_seed {first_seed}, but at least one seed between 0 and 4294967295 is needed; "
            "give how many, from 1 on, or a list"
        )
    group = tuple(
        make_lane(seed, *setting, rate) for seed in listed for setting in settings for rate in rates or [None]
    )
    if len({tuple(lane.columns.values()) for lane in group}) < len(set(map(str, group))):
        raise UserError("two ranges have the same middle, so that tables could not tell them apart; train them apart")
    if len(set(map(str, group))) < len(group) or len(set(group)) < len(group):
        raise UserError("a seed, a constraint or a learning rate was given twice; give each of them once")
    return group


def all_trained_under(algorithm: Algorithm, asked: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """The constraints that are trained under together."""
    name, kinds = name_of(algorithm), (algorithm.trains_under, *algorithm.also_under)
    if len(asked) == 1:
        if asked[0].ranged and not algorithm.draws_limits:
            raise UserError(f"{name} trains for one limit and probability, not for ranges of them; use outage_ppo")
        return (trained_under(algorithm, asked[0]),)
    if not algorithm.several:
        raise UserError(f"{name} trains under one constraint, not under {len(asked)} together; use outage_ppo or qcpo")
    other = next((each for each in asked if not isinstance(each, kinds)), None)
    if other is not None:
        raise UserError(
            f"{name} trains under any number of {' and '.join(kind.__name__ for kind in kinds)}, but not under "
            f"{type(other).__name__}; leave it out, or use another algorithm"
        )
    return tuple(asked)


def trained_under(algorithm: Algorithm, asked: Constraint) -> Constraint:
    """The constraint that is trained under. An outage is translated for every algorithm; others must be its own."""
    kind = algorithm.trains_under
    if isinstance(asked, (kind, *algorithm.also_under)):
        return asked
    if isinstance(asked, Outage):
        return kind.from_outage(asked)
    raise UserError(
        f"{name_of(algorithm)} trains under {kind.__name__}, not under {type(asked).__name__}; "
        f"give qcrl.{kind.__name__} or qcrl.Outage"
    )


def reporting(env: Described, lanes: Sequence[Lane]) -> Described:
    """The environment with the costs that constraints name; what a task could report besides costs time and memory."""
    if not hasattr(env, "with_costs"):
        return env
    named = [constraint.cost for lane in lanes for constraint in lane.constraints]
    return env.with_costs(list(dict.fromkeys([*named, *(env.costs if env.costs != ONE_COST else ())])))


def drawing(env: Described, lanes: Sequence[Lane]) -> Described:
    """The environment whose episodes draw limit and probability, where a constraint has ranges of them."""
    return drawings.drawing(env) if lanes[0].constraint.ranged else env  # type: ignore[arg-type]


def check_costs(env: Described, lanes: Sequence[Lane]) -> None:
    """Every constraint must be about a cost that the environment has."""
    for constraint in {constraint for lane in lanes for constraint in lane.constraints}:
        if constraint.cost not in env.costs:
            raise UserError(
                f"a constraint is on the cost {constraint.cost!r}, but {env.id} has {', '.join(env.costs)}; "
                "name one of these"
            )


def fit(algorithm: Algorithm, env: Described, given: Settings) -> Algorithm:
    """The algorithm with as many environments as there are, if it can be trained on them at all."""
    algorithm.check(env)
    count = getattr(env, "num_envs", None)
    if count is None or count == algorithm.num_envs:
        return algorithm
    if "num_envs" in given:
        raise UserError(
            f"num_envs is {algorithm.num_envs}, but {env.id} was given as an object that holds {count}; "
            "leave num_envs out, or give the function that makes one environment"
        )
    return algorithm.with_envs(count, given)


def widen_window(algorithm: Algorithm, lanes: Sequence[Lane], warn: Callable[[str], None]) -> Algorithm:
    """With too few allowed outages among the recent episodes, a quantile or outage cannot be told from them."""
    shares = [share for lane in lanes for share in lane.shares]
    probability = min(shares)
    steered = any(each.share is not None for each in lanes[0].constraints) and hasattr(algorithm, "driver_window")
    judged = ["window", "driver_window"] if steered and algorithm.outages_in_window == 2 else ["window"]
    wider: Settings = {
        name: episode_window(getattr(algorithm, name), probability, algorithm.outages_in_window) for name in judged
    }
    constraints = [each for lane in lanes for each in lane.constraints]
    wider["window"] = max(wider["window"], *map(algorithm.fewest_episodes, constraints))
    if max(wider.values()) >= 2**31:
        raise UserError(
            f"window is {algorithm.window} and probability {probability:g}, so that {max(wider.values()):.3g} recent "
            "episodes would be looked at; give a smaller window, or a larger probability"
        )
    widened = dataclasses.replace(algorithm, **wider)
    if widened != algorithm:
        warn(
            f"{algorithm.window} episodes hold too few allowed outages at probability {probability:g}, so the most "
            f"recent {widened.window} are looked at"
        )
    return widened


def length(algo: str | Algorithm, preset: str | None, steps: float | None, env: Described | None = None) -> float:
    """Steps of a training: those asked for, or the preset's own."""
    if steps is None:
        kind = find(algo) if isinstance(algo, str) else type(algo)
        usual = default_preset(algo, suited_preset(env)) if isinstance(algo, str) else None
        return kind.lengths.get(preset or usual or "", DEFAULT_STEPS)
    if not 1 <= steps < 2**31 or steps != int(steps):
        raise UserError(f"steps is {steps}, but must be a whole number from 1 to 2147483647; give the steps per seed")
    return steps


FEW_ITERATIONS = 200
"""A multiplier whose gains count per iteration takes some hundred to rise."""


def check_length(algorithm: Algorithm, steps: float, warn: Callable[[str], None]) -> None:
    """A learning rate that falls, and a multiplier that rises with it, are meant for a length of training."""
    batch, value = algorithm.steps_per_iteration, partial(getattr, algorithm)
    halving = value("learning_rate_halving", 0.0)
    ends = value("learning_rate_end", math.inf) < math.inf
    full, falling, enough = 3 * halving * batch, value("falls_for", 0.0) * batch, FEW_ITERATIONS * batch
    if steps < full < math.inf and not ends:
        warn(
            f"warning: {steps:,.0f} steps are few for a learning rate that halves every "
            f"{halving:g} iterations; the outage may end above its target, so give {full:,.0f} or more"
        )
    elif steps < falling and value("falls_from", 0.0) > 0:
        warn(
            f"warning: {steps:,.0f} steps are few for a target that comes down for {falling:,.0f}; "
            "a small probability may not be reached, so give as many, or a lower falls_for"
        )
    elif ends and steps < enough and value("relative_gains", False) and not value("gain_steps", 0):
        warn(
            f"warning: {steps:,.0f} steps are few for a multiplier that moves once in {batch:,}; the "
            f"outage may end above its target, so give {enough:,} or more"
        )


def check_memory(algorithm: Algorithm, env: Described, lanes: int, say: Callable[[str], None]) -> None:
    """Say what a replay will take before it is taken; one that does not fit is an error."""
    kept = algorithm.bytes_kept(env)
    if kept:
        used = list(program.mesh(env, lanes).devices.ravel())
        say(replay_buffer.require_memory(lanes, program.kept_at_once(env) * kept, used))
