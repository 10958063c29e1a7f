"""Environments that do what none may do, each in one way. All of them are sound for their first steps."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import NoReturn

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from qcrl.envs.host.costs import Info
from qcrl.kinds import GymEnv, Settings, Tree

FROM = 7
"""The step at which they turn, unless told otherwise."""
Values = tuple[Tree, ...]
Fault = Callable[[Values], object]
"""What is returned instead of what an environment would return."""


class Sound(gymnasium.Env):
    """Ten steps that cost one half each."""

    observation_space = Box(-1.0, 1.0, (3,))
    action_space = Box(-1.0, 1.0, (2,))
    steps = 0

    def reset(self, *, seed: int | None = None, options: Settings | None = None) -> tuple[np.ndarray, Info]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: np.ndarray) -> Tree:
        self.steps += 1
        self.time += 1
        return np.full(3, 0.1, np.float32), 1.0, False, self.time == 10, {"cost": 0.5}


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("cannot be shown")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("is no array")


class Unsayable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot be said")


class Base(BaseException):
    """Not an Exception."""


def raising(error: BaseException) -> Fault:
    def fault(_: Values) -> NoReturn:
        raise error

    return fault


def leave(code: Tree) -> Fault:
    return lambda _: sys.exit(code)


def recurse(values: Values) -> object:
    return recurse(values)


def instead(place: int, value: object) -> Fault:
    """One of the five values is another."""

    def fault(values: Values) -> Values:
        return (*values[:place], value, *values[place + 1 :])

    return fault


def shaped(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


STEPS: dict[str, Fault] = {
    "raises": raising(ValueError("broken")),
    "raises without a word": raising(Unsayable()),
    "raises a BaseException": raising(Base("base")),
    "raises OSError": raising(OSError(28, "No space left on device")),
    "raises EOFError": raising(EOFError()),
    "raises StopIteration": raising(StopIteration()),
    "raises GeneratorExit": raising(GeneratorExit()),
    "recurses": recurse,
    "exits with 0": leave(0),
    "exits with 1": leave(1),
    "exits with a text": leave("bye"),
    "exits with nothing": leave(None),
    "returns None": lambda _: None,
    "returns a number": lambda _: 1.0,
    "returns a text": lambda _: "abcde",
    "returns an array": lambda _: np.zeros(5),
    "returns 4 values": lambda values: values[:4],
    "returns 7 values": lambda values: (*values, 1, 2),
    "returns nothing": lambda _: (),
    "observes None": instead(0, None),
    "observes NaN": instead(0, np.array([0, np.nan, 0], np.float32)),
    "observes infinity": instead(0, np.array([0, np.inf, 0], np.float32)),
    "observes too large numbers": instead(0, np.array([0, 1e300, 0])),
    "observes a text": instead(0, "abc"),
    "observes objects": instead(0, np.array([None, None, None])),
    "observes fewer numbers": instead(0, shaped(2)),
    "observes more numbers": instead(0, shaped(4)),
    "observes another shape": instead(0, shaped(1, 3)),
    "observes nothing": instead(0, shaped(0)),
    "observes ragged lists": instead(0, [[1.0], [1.0, 2.0]]),
    "observes a dictionary": instead(0, {"a": 1}),
    "observes complex numbers": instead(0, np.zeros(3, complex)),
    "observes what cannot be shown": instead(0, Unshowable()),
    "rewards None": instead(1, None),
    "rewards NaN": instead(1, float("nan")),
    "rewards infinity": instead(1, -float("inf")),
    "rewards a text": instead(1, "1.5"),
    "rewards an array": instead(1, np.ones(2)),
    "rewards a list": instead(1, [1.0, 2.0]),
    "rewards nothing": instead(1, np.zeros(0)),
    "rewards a complex number": instead(1, 1j),
    "rewards a huge number": instead(1, 10**400),
    "rewards a dictionary": instead(1, {}),
    "rewards what cannot be shown": instead(1, Unshowable()),
    "terminates by None": instead(2, None),
    "terminates by a text": instead(2, "False"),
    "terminates by an array": instead(2, np.array([True, False])),
    "terminates by NaN": instead(2, float("nan")),
    "truncates by None": instead(3, None),
    "truncates by 2": instead(3, 2),
    "informs by None": instead(4, None),
    "informs by a list": instead(4, [("cost", 0.5)]),
    "informs by a text": instead(4, "cost"),
    "costs nothing": instead(4, {}),
    "costs None": instead(4, {"cost": None}),
    "costs NaN": instead(4, {"cost": float("nan")}),
    "costs infinity": instead(4, {"cost": float("inf")}),
    "costs less than 0": instead(4, {"cost": -0.5}),
    "costs a text": instead(4, {"cost": "1.5"}),
    "costs an array": instead(4, {"cost": np.ones(2)}),
    "costs a huge number": instead(4, {"cost": 10**400}),
    "costs what cannot be shown": instead(4, {"cost": Unshowable()}),
}
"""What a step does to the five values it would return."""


def broken_step(name: str, since: int = FROM) -> type[Sound]:
    """A class whose steps go wrong in this way from then on."""

    class Broken(Sound):
        def step(self, action: np.ndarray) -> Tree:
            values = super().step(action)
            return STEPS[name](values) if self.steps >= since else values

    return Broken


RESETS: dict[str, Fault] = {
    "resets to an error": raising(ValueError("broken")),
    "resets to an exit": leave(0),
    "resets in the old form": lambda values: values[0],
    "resets to None": lambda _: None,
    "resets to NaN": lambda values: (values[0] * np.nan, {}),
    "resets to another shape": lambda _: (shaped(2), {}),
    "resets with info None": lambda values: (values[0], None),
    "resets to three values": lambda values: (*values, 1),
}


def broken_reset(name: str, since: int = 3) -> type[Sound]:
    """A class whose resets go wrong in this way after so many episodes."""

    class Broken(Sound):
        episodes = 0

        def reset(self, **options: Tree) -> Tree:
            self.episodes += 1
            values = super().reset(**options)
            return RESETS[name](values) if self.episodes > since else values

    return Broken


class NoClose(Sound):
    def close(self) -> None:
        raise RuntimeError("cannot be closed")


class ExitingClose(Sound):
    def close(self) -> None:
        sys.exit(0)


class NoSpace(Sound):
    @property
    def observation_space(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no space")


class NoAction(Sound):
    action_space = None  # type: ignore[assignment]


class Actionless(Box):
    def sample(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError("no action")


class OddSample(Sound):
    action_space = Actionless(-1.0, 1.0, (2,))  # type: ignore[assignment]


class OddLimit(Sound):
    """Sound all the same: its limit is not known."""

    spec = SimpleNamespace(max_episode_steps="many", id="Odd-v0")  # type: ignore[assignment]


class NoSpec(Sound):
    @property
    def spec(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no spec")


class NoAttribute(Sound):
    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(f"no {name}")


def unmade() -> NoReturn:
    raise RuntimeError("cannot be made")


def exits() -> NoReturn:
    sys.exit(0)


def nothing() -> None:
    return None


def number() -> int:
    return 42


MADE: dict[str, Callable[[], GymEnv]] = {
    "cannot be made": unmade,
    "exits while it is made": exits,
    "is None": nothing,
    "is a number": number,
    "has no observation space": NoSpace,
    "has no action space": NoAction,
    "has no random actions": OddSample,
    "has no spec": NoSpec,
    "has nothing else": NoAttribute,
    "cannot be closed": NoClose,
    "exits when it is closed": ExitingClose,
}
"""What is wrong before the first step, or after the last."""

ZOO: dict[str, Callable[[], GymEnv]] = {
    **{name: broken_step(name) for name in STEPS},
    **{name: broken_reset(name) for name in RESETS},
    **MADE,
}
