"""The environment that a user may name or pass: qcrl's own, a functional one, or one that runs in Python."""

from dataclasses import dataclass
from typing import Any

from qcrl.envs import ENVIRONMENT_IDS, make
from qcrl.envs.base import ONE_COST, Described, Environment
from qcrl.envs.host.costs import CostFunction
from qcrl.envs.host.environment import HostEnv, open_host
from qcrl.errors import UserError


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


def find(env: Any, cost: str | CostFunction | None = None) -> Described:
    """The environment that `env` means, with its cost from where `cost` says, or found."""
    if isinstance(env, HostEnv | Completed):
        return env
    own = isinstance(env, str) and env in ENVIRONMENT_IDS
    if own or (hasattr(env, "observation_size") and hasattr(env, "horizon")):
        if cost is not None:
            name = env if own else env.id
            raise UserError(f"cost is {cost!r}, but {name} has its own; leave cost out")
        if own:
            return make(env)
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
