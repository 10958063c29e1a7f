"""A user's own Gymnasium vector environment as a fleet, in any autoreset mode: no cost is lost or counted twice."""

import multiprocessing
from collections.abc import Callable
from typing import NoReturn

import numpy as np
from jaxtyping import Bool, Float

from qcrl.envs.host.boundary import guarded
from qcrl.envs.host.costs import CostSource, Info, find
from qcrl.envs.host.fleet import Outcome, Seeds
from qcrl.envs.host.spaces import flatten
from qcrl.envs.host.values import copied, flag, mapping, number, shown
from qcrl.errors import BrokenEnvironment, UserError, WorkerFailure
from qcrl.kinds import GymEnv, Tree


class Vector:
    """Steps a vector environment and undoes its automatic resets."""

    def __init__(self, env: GymEnv, source: CostSource | None, env_id: str, timeout: float = 60.0) -> None:
        from gymnasium.vector import AsyncVectorEnv, AutoresetMode

        try:
            self.mode = AutoresetMode(env.metadata["autoreset_mode"])
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"{env_id} does not say in metadata['autoreset_mode'] when it begins new episodes; "
                "give the function that makes one environment instead"
            ) from None
        self.env = env
        self.source = source
        self.env_id = env_id
        self.timeout = timeout
        self.modes = AutoresetMode
        self.workers = env if isinstance(env, AsyncVectorEnv) else None
        self.steps = 0
        self.raw: list[Tree] = []
        self.pending = np.zeros(env.num_envs, bool)
        """Environments that the coming step only resets."""

    def reset(self, seeds: Seeds) -> Float[np.ndarray, "env obs"]:
        self.pending = np.zeros(self.env.num_envs, bool)
        self.raw = self._reset(seed=list(seeds))
        return self._flat(self.raw)

    def _reset(self, **options: object) -> list[Tree]:
        values = self._call("reset", **options)
        if not isinstance(values, tuple) or len(values) != 2:
            self._refuse(f"reset returned {shown(values)}, but must return observations and a dictionary")
        return self._split(values[0])

    def step(self, actions: np.ndarray, seeds: Seeds | None = None) -> Outcome:
        if seeds is not None:
            raise UserError(f"{self.env_id} cannot be given episodes; pass the function that makes one environment")
        self.steps += 1
        if not np.isfinite(actions).all():
            self._refuse("the policy's actions are not finite; train it again")
        values = self._call("step", np.asarray(actions))
        if not isinstance(values, tuple) or len(values) not in (5, 6):
            self._refuse(f"step returned {shown(values)}, but must return 5 values, or 6 with a cost in third place")
        obs, given, *third, terminated, truncated, info = values
        with guarded(self._where):
            mapping(info)
        reward, terminated, truncated = (
            self._column(values, what, read)
            for values, what, read in (
                (given, "reward", number),
                (terminated, "terminated", flag),
                (truncated, "truncated", flag),
            )
        )
        real = ~self.pending
        ended = (terminated | truncated) & real
        if self.source is None:
            self.source = find(self._info_of(info, 0, ended), len(values), self.env_id)
        raw = self._split(obs)
        after = raw
        if self.mode == self.modes.SAME_STEP and ended.any():
            with guarded(self._where):
                after = [info["final_obs"][i] if ended[i] else each for i, each in enumerate(raw)]
        cost, i = np.zeros((self.env.num_envs, len(self.source.names))), 0
        with guarded(lambda: self._where(i), f"has a cost ({self.source}) at which was raised"):
            for i in np.flatnonzero(real).tolist():
                own = self._info_of(info, i, ended)
                cost[i] = self.source.read(self.raw[i], actions[i], after[i], own, third[0][i] if third else None)
        next_obs = self._flat(after)
        if self.mode == self.modes.DISABLED and ended.any():
            raw = self._reset(options={"reset_mask": ended})
        self.pending = ended if self.mode == self.modes.NEXT_STEP else np.zeros_like(ended)
        self.raw = raw
        return Outcome(real, self._flat(raw), next_obs, reward, cost, terminated & real, truncated & real)

    def restarts(self) -> int:
        """None: it cannot be made anew."""
        return 0

    def close(self) -> None:
        """The vector environment is the user's, who may go on with it."""

    def _info_of(self, info: Info, i: int, ended: Bool[np.ndarray, " env"]) -> Info:
        """What environment i reported with its step."""
        return _own(info.get("final_info", {}) if self.mode == self.modes.SAME_STEP and ended[i] else info, i)

    def _where(self, i: int | None = None) -> str:
        return f"{'' if i is None else f'environment {i} of '}{self.env_id}, step {self.steps}"

    def _refuse(self, what: str) -> NoReturn:
        raise BrokenEnvironment(f"{self._where()}: {what}")

    def _column(self, values: Tree, what: str, read: Callable[[object, str], float]) -> np.ndarray:
        """One value for each environment."""
        place = 0
        with guarded(lambda: self._where(place)):
            column = np.asarray(values)
            if column.shape != (self.env.num_envs,):
                self._refuse(f"{what} is {shown(values)}, but must be one value for each of {self.env.num_envs}")
            kind = column.dtype.kind
            if not (kind == "b" if read is flag else kind == "f" and np.isfinite(column).all()):
                for place in range(len(column)):
                    read(column[place], what)
        return np.array(column, bool if read is flag else None)

    def _split(self, obs: Tree) -> list[Tree]:
        """Observations of the single environments, which the vector environment will not overwrite."""
        from gymnasium.spaces import Box
        from gymnasium.vector.utils import iterate

        with guarded(self._where):
            boxed = isinstance(self.env.single_observation_space, Box)
            split = (
                list(np.array(obs)) if boxed else [copied(each) for each in iterate(self.env.observation_space, obs)]
            )
            if len(split) != self.env.num_envs:
                raise UserError(f"there are {len(split)} observations, but must be {self.env.num_envs}")
            return split

    def _flat(self, raw: list[Tree]) -> Float[np.ndarray, "env obs"]:
        place, rows = 0, []
        with guarded(lambda: self._where(place)):
            for place in range(len(raw)):
                rows.append(flatten(self.env.single_observation_space, raw[place]))
        return np.stack(rows)

    def _call(self, method: str, *args: np.ndarray, **kwargs: object) -> tuple[Tree, ...]:
        """Step or reset; worker processes of the vector environment that die or hang are named."""
        with guarded(self._where):
            if self.workers is None:
                return getattr(self.env, method)(*args, **kwargs)
            try:
                getattr(self.workers, f"{method}_async")(*args, **kwargs)
                return getattr(self.workers, f"{method}_wait")(timeout=self.timeout)
            except (EOFError, OSError, multiprocessing.TimeoutError) as error:
                message = self._blame()
                for process in self.workers.processes:
                    process.kill()
                self.workers.closed = True  # its own close would wait for the one that does not answer
                raise WorkerFailure(message) from error

    def _blame(self) -> str:
        processes = [] if self.workers is None else self.workers.processes
        for process in processes:
            process.join(0.1)
        dead = [f"{p.name} (environment {i}, exit code {p.exitcode})" for i, p in enumerate(processes) if p.exitcode]
        if dead:
            return f"{' and '.join(dead)} of {self.env_id} died at step {self.steps}; check memory and simulator"
        silent = [
            f"{process.name} (environment {i})"
            for i, process in enumerate(processes)
            if not self.workers.parent_pipes[i].poll()  # type: ignore[union-attr]
        ]
        return (
            f"{' and '.join(silent) or self.env_id} gave no answer for {self.timeout:g} s at step {self.steps}: "
            "it hangs, or a step takes longer than step_timeout allows; raise step_timeout, or mend the environment"
        )


def _own(info: Info, i: int) -> Info:
    """Row i of batched information. What only others have is left out: Gymnasium fills it with zeros."""
    masks = {key: info.get(f"_{key}") for key in info if not key.startswith("_")}
    kept = [key for key, mask in masks.items() if mask is None or mask[i]]
    return {key: _row(info[key], i) for key in kept}


def _row(values: Tree, i: int) -> Tree:
    if isinstance(values, dict):
        return _own(values, i)
    return values[i] if isinstance(values, np.ndarray | list | tuple) else values
