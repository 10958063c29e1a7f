"""Several host environments stepped together, with every reset in one place. Workers run this: it imports no JAX."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float

from qcrl.envs.host.boundary import Single, close
from qcrl.envs.host.costs import CostSource
from qcrl.errors import UserError
from qcrl.kinds import GymEnv

Seeds = Sequence[int | None]


Step = tuple[Float[np.ndarray, " obs"], float, list[float], bool, bool]
"""Observation, reward, costs, terminated, truncated."""
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

    def restarts(self) -> int: ...

    def close(self) -> None: ...


class Local:
    """Environments in this process, stepped one after the other."""

    def __init__(
        self,
        envs: Sequence[GymEnv],
        source: CostSource,
        env_id: str,
        first: int = 0,
        say: Callable[[str], None] = lambda text: None,
        masks: int = 0,
    ) -> None:
        self.say = say
        self.envs = [Single(env, source, f"environment {first + i} of {env_id}", masks) for i, env in enumerate(envs)]

    def reset(self, seeds: Seeds) -> Float[np.ndarray, "env obs"]:
        return np.stack([self.reset_one(index, seed) for index, seed in enumerate(seeds)])

    def reset_one(self, index: int, seed: int | None) -> Float[np.ndarray, " obs"]:
        return self.envs[index].reset(seed)

    def step_one(self, index: int, action: np.ndarray) -> Step:
        return self.envs[index].step(action)

    def restarts(self) -> int:
        """How often environments were made anew."""
        return 0

    def step(self, actions: np.ndarray, seeds: Seeds | None = None) -> Outcome:
        rows = [self.step_one(index, action) for index, action in enumerate(actions)]
        columns = list(zip(*rows))
        next_obs = np.stack(columns[0])
        reward, cost = (np.array(column, np.float64) for column in columns[1:3])
        terminated, truncated = (np.array(column, bool) for column in columns[3:])
        obs = next_obs
        ended = np.flatnonzero(terminated | truncated).tolist()
        if ended:
            obs = next_obs.copy()
            for i in ended:
                obs[i] = self.reset_one(i, None if seeds is None else seeds[i])
        return Outcome(np.ones(len(rows), bool), obs, next_obs, reward, cost, terminated, truncated)

    def close(self) -> None:
        """One that cannot be closed is named; what was trained or measured stays as it is."""
        for each in self.envs:
            try:
                close(each.env, each.where)
            except UserError as error:
                self.say(f"warning: {error}")
