"""Several host environments stepped together, with every reset in one place. Workers run this: it imports no JAX."""

import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from jaxtyping import Bool, Float

from qcrl.envs.host.costs import CostSource
from qcrl.envs.host.spaces import flatten
from qcrl.errors import UserError
from qcrl.kinds import GymEnv, Tree

Seeds = Sequence[int | None]
T = TypeVar("T")


Flags = Bool[np.ndarray, " env"]


class Outcome(NamedTuple):
    """One step of all environments."""

    real: Flags
    """False where a vector environment only began a new episode, so that nothing was learned."""
    obs: Float[np.ndarray, "env obs"]
    """What to act on next: after an episode's end the first observation of the next one."""
    next_obs: Float[np.ndarray, "env obs"]
    """What the step led to: at an episode's end its last observation."""
    reward: Float[np.ndarray, " env"]
    cost: Float[np.ndarray, "env cost"]
    terminated: Flags
    truncated: Flags

    @property
    def ended(self) -> Bool[np.ndarray, " env"]:
        return self.terminated | self.truncated


class Fleet(Protocol):
    """What a host rollout steps."""

    def reset(self, seeds: Seeds) -> Float[np.ndarray, "env obs"]: ...

    def step(self, actions: np.ndarray, seeds: Seeds | None = None) -> Outcome:
        """`seeds` are for the episodes that begin with this step; without them environments go on with theirs."""
        ...

    def close(self) -> None: ...


class Single:
    """One environment, its cost, and the count of its steps for messages."""

    def __init__(self, env: GymEnv, source: CostSource, name: str) -> None:
        self.env = env
        self.source = source
        self.name = name
        self.steps = 0
        self.obs: Tree = None

    @property
    def where(self) -> str:
        return f"{self.name} at its step {self.steps}"

    def reset(self, seed: int | None) -> np.ndarray:
        self.obs, _ = self.call(self.env.reset, seed=seed)
        return flatten(self.env.observation_space, self.obs)

    def step(self, action: np.ndarray | np.integer) -> tuple[np.ndarray, float, float, bool, bool]:
        """Observation, reward, cost, terminated, truncated."""
        self.steps += 1
        values = self.call(self.env.step, action)
        if len(values) not in (5, 6):
            raise UserError(f"{self.where} returned {len(values)} values; step must return 5, or 6 with a cost")
        obs, reward, *third, terminated, truncated, info = values
        cost = self.source.read(self.obs, action, obs, info, third[0] if third else None, self.where)
        reward = float(reward)
        if not np.isfinite(reward):
            raise UserError(f"{self.where} has the reward {reward}, but rewards must be finite; mend its reward")
        self.obs = obs
        return flatten(self.env.observation_space, obs), reward, cost, bool(terminated), bool(truncated)

    def call(self, function: Callable[..., T], *args: object, **kwargs: object) -> T:
        try:
            return function(*args, **kwargs)
        except UserError:
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise UserError(
                f"{self.where} raised {type(error).__name__}: {error} ({place.filename}, line {place.lineno}); mend it"
            ) from error


class Local:
    """Environments in this process, stepped one after the other."""

    def __init__(self, envs: Sequence[GymEnv], source: CostSource, env_id: str, first: int = 0) -> None:
        self.envs = [Single(env, source, f"environment {first + i} of {env_id}") for i, env in enumerate(envs)]

    def reset(self, seeds: Seeds) -> Float[np.ndarray, "env obs"]:
        return np.stack([env.reset(seed) for env, seed in zip(self.envs, seeds)])

    def step(self, actions: np.ndarray, seeds: Seeds | None = None) -> Outcome:
        rows = [env.step(action) for env, action in zip(self.envs, actions)]
        columns = list(zip(*rows))
        next_obs = np.stack(columns[0])
        reward, cost = (np.array(column, np.float64) for column in columns[1:3])
        terminated, truncated = (np.array(column, bool) for column in columns[3:])
        obs = next_obs
        ended = np.flatnonzero(terminated | truncated).tolist()
        if ended:
            obs = next_obs.copy()
            for i in ended:
                obs[i] = self.envs[i].reset(None if seeds is None else seeds[i])
        return Outcome(np.ones(len(rows), bool), obs, next_obs, reward, cost[:, None], terminated, truncated)

    def close(self) -> None:
        for each in self.envs:
            each.env.close()
