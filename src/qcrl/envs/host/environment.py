"""Environments that run in Python: a Gymnasium id, a factory, an instance or a vector environment. Finds the cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qcrl.envs import ENVIRONMENT_IDS
from qcrl.envs.base import ONE_COST
from qcrl.envs.host import costs
from qcrl.envs.host.costs import CostFunction, CostSource
from qcrl.envs.host.fleet import Fleet, Local
from qcrl.envs.host.spaces import Actions, check_observations, describe_actions
from qcrl.envs.host.vector import Vector
from qcrl.envs.host.workers import Workers
from qcrl.errors import UserError, load, path_of
from qcrl.kinds import GymEnv, GymSpace

ASSUMED_HORIZON = 1000
"""Where an environment states no time limit.

From it follows how many fresh episodes a verdict is based on, and what the limit is worth to WCSAC's critics, which
discount.
"""


@dataclass(frozen=True, eq=False)
class HostEnv:
    """What training and evaluation need to know about a host environment, and how to get more of it."""

    id: str
    make: Callable[[], GymEnv] | None
    """Makes one environment; None where only one object exists, `only`."""
    only: GymEnv
    observation_space: GymSpace
    observation_size: int
    action_size: int
    actions: Actions
    source: CostSource
    found: bool
    """The cost was found, not given."""
    horizon: int
    timed: bool
    """The horizon is the environment's own time limit, not assumed."""

    fixed_length = False
    costs = ONE_COST
    description = "an environment that runs in Python"

    @property
    def cost_source(self) -> str:
        return str(self.source)

    @property
    def discrete(self) -> bool:
        return self.actions.discrete

    @property
    def num_envs(self) -> int | None:
        """How many there are; None where there can be any number."""
        return None if self.make is not None else getattr(self.only, "num_envs", 1)

    def fleet(
        self, count: int, workers: int = 0, timeout: float = 60.0, say: Callable[[str], None] = lambda text: None
    ) -> Fleet:
        """So many environments, in this process or in worker processes."""
        self.check_count(count, workers)
        if self.make is not None:
            if workers:
                return Workers(self.make, self.source, self.id, count, workers, timeout, say)
            return Local([self.make() for _ in range(count)], self.source, self.id)
        if is_vector(self.only):
            return Vector(self.only, self.source, self.id, timeout)
        return _Kept([self.only], self.source, self.id)

    def check_count(self, count: int, workers: int) -> None:
        """Whether there can be so many environments."""
        if self.make is None and (count != self.num_envs or workers):
            raise UserError(
                f"{count} environments in {workers} worker processes are needed, but {self.id} was given as an object "
                f"that holds {self.num_envs}; give the function that makes it instead"
            )

    def __str__(self) -> str:
        how = "found automatically" if self.found else "as given"
        return (
            f"{self.id}: the cost is {self.source} ({how}); {self.actions}; {self.observation_size} observed numbers; "
            f"episodes are taken to last {self.horizon:,} steps at most"
        )


class _Kept(Local):
    """The user's own instance, which stays open."""

    def close(self) -> None:
        pass


def open_host(env: str | GymEnv, cost: str | CostFunction | CostSource | None = None) -> HostEnv:
    """The host environment that `env` means, tried for one step."""
    source = costs.parse(cost)
    if is_vector(env):
        return _open_vector(env, source)
    make: Callable[[], GymEnv] | None
    if isinstance(env, str):
        env_id, make = env, maker(env)
    elif not isinstance(env, type) and hasattr(env, "step"):
        env_id, make = _name(env), None
    elif callable(env):
        env_id, make = path_of(env), env
    else:
        raise UserError(
            f"env is {env!r}, but must be an id, a function that makes an environment, or an environment; "
            "see `qcrl envs`"
        )
    only: GymEnv = env if make is None else _made(make, env_id)
    if make is not None and is_vector(only):
        raise UserError(f"{env_id} makes a vector environment; give the vector environment, or make single ones")
    env_id = env_id or _name(only)
    actions, action_size = describe_actions(getattr(only, "action_space", None), env_id)
    size = check_observations(getattr(only, "observation_space", None), env_id)
    found = source is None
    source = _try(only, actions, source, env_id)
    space = only.observation_space
    if make is not None:
        only.close()
    kept = None if make else only
    return HostEnv(env_id, make, kept, space, size, action_size, actions, source, found, *_time_limit(only))


def _time_limit(env: GymEnv) -> tuple[int, bool]:
    """Steps of the longest episode, and whether the environment says so."""
    limit = getattr(getattr(env, "spec", None), "max_episode_steps", None)
    return limit or ASSUMED_HORIZON, limit is not None


def is_vector(env: GymEnv) -> bool:
    return hasattr(env, "single_action_space") and hasattr(env, "num_envs")


def _open_vector(env: GymEnv, source: CostSource | None) -> HostEnv:
    env_id = _name(env)
    actions, action_size = describe_actions(env.single_action_space, env_id)
    size = check_observations(env.single_observation_space, env_id)
    trial = Vector(env, source, env_id)
    trial.reset([0] * env.num_envs)
    env.action_space.seed(0)
    trial.step(env.action_space.sample())
    assert trial.source is not None
    space = env.single_observation_space
    return HostEnv(
        env_id, None, env, space, size, action_size, actions, trial.source, source is None, *_time_limit(env)
    )


def _try(env: GymEnv, actions: Actions, source: CostSource | None, env_id: str) -> CostSource:
    """Where the cost is, from one step with a random action; a cost that is not where it should be is an error now."""
    trial = Local([env], source or CostSource(), env_id).envs[0]
    trial.reset(0)
    env.action_space.seed(0)
    if source is None:
        values = trial.call(env.step, env.action_space.sample())
        source = costs.find(values[-1], len(values), env_id)
        trial = Local([env], source, env_id).envs[0]
        trial.reset(0)
    trial.step(env.action_space.sample())
    return source


def maker(text: str) -> Callable[[], GymEnv]:
    """Gymnasium's id, or module:function."""
    name = text.partition(":")[2]
    if name.isidentifier():
        return load(text, "env")
    try:
        import gymnasium

        gymnasium.spec(text)
    except Exception as error:  # Gymnasium's own errors, or those of a module that the id names
        raise UserError(
            f"there is no environment {text!r} ({' '.join(str(error).split())}); the known ones are "
            f"{', '.join(ENVIRONMENT_IDS)}, and Gymnasium's ids, and module:function"
        ) from None
    return _GymMaker(text)


@dataclass(frozen=True)
class _GymMaker:
    id: str

    def __call__(self) -> GymEnv:
        import gymnasium

        return gymnasium.make(self.id)


def _made(make: Callable[[], GymEnv], env_id: str) -> GymEnv:
    try:
        env = make()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{env_id or make} cannot be made ({type(error).__name__}: {error}); mend that") from error
    if not hasattr(env, "step"):
        raise UserError(f"{env_id or make} made {env!r}, which has no step; it must return a Gymnasium environment")
    return env


def _name(env: GymEnv) -> str:
    """A name that is no id: what was trained on was an object, and only its owner can bring it back."""
    spec = getattr(env, "spec", None)
    return f"{spec.id if spec is not None else type(getattr(env, 'unwrapped', env)).__name__}-custom"
