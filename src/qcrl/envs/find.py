"""Any environment that a user may name or pass: qcrl's own, a functional one, or one that runs in Python."""

from typing import Any

from qcrl.envs import ENVIRONMENT_IDS, make
from qcrl.envs.base import Environment
from qcrl.envs.costs import CostFunction
from qcrl.envs.host import Host, open_host
from qcrl.errors import UserError


def find(env: Any, cost: str | CostFunction | None = None) -> Environment | Host:
    """The environment that `env` means, with its cost from where `cost` says, or found."""
    if isinstance(env, Host):
        return env
    own = isinstance(env, str) and env in ENVIRONMENT_IDS
    if own or (hasattr(env, "observation_size") and hasattr(env, "horizon")):
        if cost is not None:
            name = env if own else env.id
            raise UserError(f"cost is {cost!r}, but {name} has its own; leave cost out")
        return make(env) if own else env
    if hasattr(env, "observation_size") and hasattr(env, "action_size"):
        from qcrl.envs.brax import BraxEnv

        return BraxEnv(env, cost=cost)
    if hasattr(env, "default_params") and hasattr(env, "step"):
        from qcrl.envs.gymnax import GymnaxEnv

        return GymnaxEnv(env, cost=cost)
    return open_host(env, cost)
