"""The environment that a user may name or pass: qcrl's own, a functional one, or one that runs in Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qcrl.envs import ENVIRONMENT_IDS, make
from qcrl.envs.base import ONE_COST, Described, Environment
from qcrl.envs.host.boundary import surrounded
from qcrl.envs.host.costs import Costs
from qcrl.envs.host.environment import HostEnv, open_host
from qcrl.errors import UserError
from qcrl.kinds import Tree


@dataclass(frozen=True)
class Completed:
    """A user's functional environment with what it left out: its actions are numbers, and it has one cost."""

    env: Environment
    discrete: bool
    timed: bool
    costs: tuple[str, ...]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.env, name)


def find(env: object, cost: Costs = None) -> Described:
    """The environment that `env` means, with its costs from where `cost` says, or found."""
    if isinstance(env, HostEnv | Completed):
        return env
    with surrounded(env if isinstance(env, str) else "the environment"):
        return _find(env, cost)


def _find(env: Any, cost: Costs) -> Described:
    own = isinstance(env, str) and env in ENVIRONMENT_IDS
    if own or (hasattr(env, "observation_size") and hasattr(env, "horizon")):
        found = make(env) if own else env
        if cost is not None:
            return _reporting(found, cost)
        if own:
            return found
        if all(hasattr(env, name) for name in ("discrete", "timed", "costs")):
            return env
        costs = tuple(getattr(env, "costs", ONE_COST))
        return Completed(env, getattr(env, "discrete", False), getattr(env, "timed", True), costs)
    if hasattr(env, "observation_size") and hasattr(env, "action_size"):
        from qcrl.envs.adapters.brax import BraxEnv

        return BraxEnv(env, cost=cost)
    if hasattr(env, "default_params") and hasattr(env, "step"):
        from qcrl.envs.adapters.gymnax import GymnaxEnv

        return GymnaxEnv(env, cost=cost)
    return open_host(env, cost)


def _reporting(env: Tree, cost: Costs) -> Described:
    """One of qcrl's tasks that reports the costs of these names; other functional environments have their own."""
    names = [cost] if isinstance(cost, str) else list(cost) if isinstance(cost, Sequence) else []
    if not hasattr(env, "with_costs") or not names or not all(isinstance(name, str) for name in names):
        known = f"name some of {', '.join(env.task.costs)}" if hasattr(env, "with_costs") else "leave cost out"
        raise UserError(f"cost is {cost!r}, but {env.id} has its own; {known}")
    return env.with_costs(list(dict.fromkeys(names)))
