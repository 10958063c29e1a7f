"""The boundary around environments that run in Python: whatever they return or raise becomes a number, or one sentence.

Workers import this: it imports no JAX.
"""

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, NoReturn

import numpy as np
from jaxtyping import Float

from qcrl.envs.host.actions import Actions
from qcrl.envs.host.costs import CostSource, Info
from qcrl.envs.host.products import Product, mask_row
from qcrl.envs.host.spaces import describe_actions, flatten
from qcrl.envs.host.values import copied, flag, mapping, number, shown
from qcrl.errors import BrokenEnvironment, UserError, WorkerFailure
from qcrl.kinds import GymEnv, Tree

Where = str | Callable[[], str]
"""Which environment, and how far it is: only asked for where something is wrong."""


class guarded:
    """What a user's code raises inside becomes one sentence; only Ctrl-C passes."""

    __slots__ = ("did", "where")

    def __init__(self, where: Where, did: str = "raised") -> None:
        self.where = where
        self.did = did

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None or isinstance(error, BrokenEnvironment | WorkerFailure | KeyboardInterrupt):
            return
        where = self.where if isinstance(self.where, str) else self.where()
        if isinstance(error, UserError):
            raise BrokenEnvironment(f"{where}: {error}") from error
        raise BrokenEnvironment(f"{where}: it {self.did} {told(error)}; mend it") from error


@contextmanager
def surrounded(name: str) -> Iterator[None]:
    """Around all that is done with an environment: what slips through between single calls is told as well."""
    try:
        yield
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise BrokenEnvironment(f"{name}: it raised {told(error)}; mend it") from error


def told(error: BaseException) -> str:
    """An exception in words, with the line that raised it; those without a message of their own included."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = ""
    frames = traceback.extract_tb(error.__traceback__)
    line = f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}{f': {text}' if text else ''}{line}"


def make(maker: Callable[[], GymEnv], name: str) -> GymEnv:
    """One environment."""
    with guarded(name or "the function that makes the environment"):
        env = maker()
        for method in ("reset", "step"):
            if not callable(getattr(env, method, None)):
                raise UserError(f"it made {shown(env)}, which has no {method}; it must return a Gymnasium environment")
    return env


def close(env: GymEnv, where: Where) -> None:
    """An environment that cannot be closed is an error like any other; one without `close` is not."""
    with guarded(where, "could not be closed:"):
        getattr(env, "close", lambda: None)()


def layers(env: GymEnv) -> list[GymEnv]:
    """An environment, what it wraps and so on; the innermost is last, where it says what that is."""
    found, innermost = [env], getattr(env, "unwrapped", env)
    while (within := getattr(found[-1], "env", None)) is not None and found[-1] is not innermost:
        if any(within is each for each in found):
            break
        found.append(within)
    return found if any(innermost is each for each in found) else [*found, innermost]


def read_mask(env: GymEnv, info: Info, actions: Actions | Product) -> Float[np.ndarray, " option"] | None:
    """info["action_mask"], or what `action_masks()` returns, as one row; None where there is neither."""
    raw: Tree = info.get("action_mask")
    if raw is None:
        method = next(filter(callable, (getattr(each, "action_masks", None) for each in layers(env))), None)
        raw = None if method is None else method()
    if raw is None:
        return None
    return (mask_row(raw, actions.parts if isinstance(actions, Product) else {}) != 0).astype(np.float32)


class RawStep(NamedTuple):
    """What one step returned, of the right kinds; its cost is still to be read, and its observation to be looked at."""

    obs: Tree
    reward: float
    third: object
    """The third of six values; None where there are five."""
    terminated: bool
    truncated: bool
    info: Info
    values: int


class Single:
    """One environment, its cost, and the count of its steps for messages."""

    def __init__(self, env: GymEnv, source: CostSource, name: str, masks: int = 0) -> None:
        """`masks` is how many options there are that may be masked, 0 where none are; they follow the observation."""
        self.masks = masks
        self.actions = describe_actions(env.action_space, name)[0] if masks else None
        self.env = env
        self.source = source
        self.name = name
        self.steps = 0
        self.obs: Tree = None
        """What was observed last: the environment's own object, or a copy where a cost function is given it later."""
        self.info: Info = {}
        """What the last step reported."""
        self.compares = any(each.function is not None for each in source.each)

    def where(self) -> str:
        return f"{self.name}, step {self.steps}"

    def reset(self, seed: int | None) -> Float[np.ndarray, " obs"]:
        info = self.raw_reset(seed)
        return self.flat(self.obs, info)

    def raw_reset(self, seed: int | None) -> Info:
        """What was observed is kept; what the environment says of the reset is returned."""
        with guarded(self.where, "raised in reset"):
            values = self.env.reset(seed=seed)
        if not isinstance(values, tuple) or len(values) != 2:
            self.refuse(f"reset returned {shown(values)}, but must return an observation and a dictionary")
        with guarded(self.where):
            self.obs = self.kept(values[0])
            return mapping(values[1])

    def step(self, action: np.ndarray | np.integer) -> tuple[Float[np.ndarray, " obs"], float, list[float], bool, bool]:
        """Observation, reward, costs, terminated, truncated; anything that is not finite is an error."""
        before = self.obs
        seen = self.raw_step(action)
        with guarded(self.where, f"has a cost function ({self.source}) that raised"):
            cost = self.source.read(before, action, seen.obs, seen.info, seen.third)
        obs = self.flat(seen.obs, seen.info, seen.terminated or seen.truncated)
        return obs, seen.reward, cost, seen.terminated, seen.truncated

    def raw_step(self, action: np.ndarray | np.integer) -> RawStep:
        """One step, as far as it can be told before its cost is known."""
        self.steps += 1
        if not isinstance(action, dict | tuple) and not np.isfinite(action).all():
            self.refuse(f"the policy's action is {shown(action)}, but must be finite; train it again")
        with guarded(self.where):
            values = self.env.step(action)
        if not isinstance(values, tuple | list) or len(values) not in (5, 6):
            count = f"{len(values)} values" if isinstance(values, tuple | list) else shown(values)
            self.refuse(f"step returned {count}, but must return 5 values, or 6 with a cost in third place")
        obs, reward, *third, terminated, truncated, info = values
        with guarded(self.where):
            seen = RawStep(
                obs,
                number(reward, "reward"),
                third[0] if third else None,
                flag(terminated, "terminated"),
                flag(truncated, "truncated"),
                mapping(info),
                len(values),
            )
            self.obs, self.info = self.kept(obs), seen.info
        return seen

    def kept(self, obs: Tree) -> Tree:
        """An environment may change one array in place, and a cost function compares it before and after a step."""
        return copied(obs) if self.compares else obs

    def flat(self, obs: Tree, info: Info, ended: bool = False) -> Float[np.ndarray, " obs"]:
        with guarded(self.where, "has an observation at which was raised"):
            row = flatten(self.env.observation_space, obs)
        return row if not self.masks else np.concatenate([row, self.mask(info, ended)])

    def mask(self, info: Info, ended: bool) -> Float[np.ndarray, " option"]:
        """1 for what may be chosen, else 0. After an episode's last step anything may."""
        if ended:
            return np.ones(self.masks, np.float32)
        with guarded(self.where, "has an action mask at which was raised"):
            assert self.actions is not None  # wherever there are masks
            found = read_mask(self.env, info, self.actions)
        if found is None or found.size != self.masks:
            what = "is missing" if found is None else f"has {found.size} entries"
            self.refuse(f"the action mask {what}, but must have {self.masks} entries at every step")
        if not self.actions.allows(found):
            self.refuse("the action mask allows nothing, but must allow an option of every choice, or end the episode")
        return found

    def refuse(self, what: str) -> NoReturn:
        raise BrokenEnvironment(f"{self.where()}: {what}")
