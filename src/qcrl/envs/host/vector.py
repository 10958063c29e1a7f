"""A user's own Gymnasium vector environment as a fleet, in any autoreset mode: no cost is lost or counted twice."""

import multiprocessing

import numpy as np
from jaxtyping import Bool, Float

from qcrl.envs.host.costs import CostSource, Info, find
from qcrl.envs.host.fleet import Outcome, Seeds
from qcrl.envs.host.spaces import flatten
from qcrl.errors import UserError, WorkerFailure
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
        obs, _ = self._call("reset", seed=list(seeds))
        self.raw = self._split(obs)
        return self._flat(self.raw)

    def step(self, actions: np.ndarray, seeds: Seeds | None = None) -> Outcome:
        if seeds is not None:
            raise UserError(f"{self.env_id} cannot be given episodes; pass the function that makes one environment")
        self.steps += 1
        values = self._call("step", np.asarray(actions))
        obs, reward, *third, terminated, truncated, info = values
        reward, terminated, truncated = (np.array(x) for x in (reward, terminated, truncated))
        real = ~self.pending
        ended = (terminated | truncated) & real
        if self.source is None:
            self.source = find(self._info_of(info, 0, ended), len(values), self.env_id)
        raw = self._split(obs)
        after = raw
        if self.mode == self.modes.SAME_STEP and ended.any():
            after = [info["final_obs"][i] if ended[i] else each for i, each in enumerate(raw)]
        cost = np.zeros(self.env.num_envs)
        for i in np.flatnonzero(real).tolist():
            own = self._info_of(info, i, ended)
            cost[i] = self.source.read(
                self.raw[i], actions[i], after[i], own, third[0][i] if third else None, self._where(i)
            )
        if not np.isfinite(reward).all():
            raise UserError(f"{self._where(int(np.argmin(np.isfinite(reward))))} has a reward that is not finite")
        next_obs = self._flat(after)
        if self.mode == self.modes.DISABLED and ended.any():
            obs, _ = self._call("reset", options={"reset_mask": ended})
            raw = self._split(obs)
        self.pending = ended if self.mode == self.modes.NEXT_STEP else np.zeros_like(ended)
        self.raw = raw
        return Outcome(real, self._flat(raw), next_obs, reward, cost[:, None], terminated & real, truncated & real)

    def close(self) -> None:
        """The vector environment is the user's, who may go on with it."""

    def _info_of(self, info: Info, i: int, ended: Bool[np.ndarray, " env"]) -> Info:
        """What environment i reported with its step."""
        return _own(info.get("final_info", {}) if self.mode == self.modes.SAME_STEP and ended[i] else info, i)

    def _where(self, i: int) -> str:
        return f"environment {i} of {self.env_id} at its step {self.steps}"

    def _split(self, obs: Tree) -> list[Tree]:
        """Observations of the single environments, which the vector environment will not overwrite."""
        from gymnasium.spaces import Box
        from gymnasium.vector.utils import iterate

        if isinstance(self.env.single_observation_space, Box):
            return list(np.array(obs))
        return [_copied(each) for each in iterate(self.env.observation_space, obs)]

    def _flat(self, raw: list[Tree]) -> Float[np.ndarray, "env obs"]:
        return np.stack([flatten(self.env.single_observation_space, each) for each in raw])

    def _call(self, method: str, *args: np.ndarray, **kwargs: object) -> tuple[Tree, ...]:
        """Step or reset; worker processes of the vector environment that die or hang are named."""
        try:
            if self.workers is None:
                return getattr(self.env, method)(*args, **kwargs)
            getattr(self.workers, f"{method}_async")(*args, **kwargs)
            return getattr(self.workers, f"{method}_wait")(timeout=self.timeout)
        except (EOFError, OSError, multiprocessing.TimeoutError) as error:
            message = self._blame()
            if self.workers is not None:
                for process in self.workers.processes:
                    process.kill()
                self.workers.closed = True  # its own close would wait for the one that does not answer
            raise WorkerFailure(message) from error
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{self.env_id} raised {type(error).__name__} at its step {self.steps}: {error}; mend it"
            ) from error

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


def _copied(obs: Tree) -> Tree:
    if isinstance(obs, dict):
        return {key: _copied(value) for key, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(map(_copied, obs))
    return np.array(obs)
