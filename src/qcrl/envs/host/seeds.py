"""Environments that do not obey the seed of a reset: their random generators are given it by hand.

Instances of such an environment often all draw the same row of episodes. Trained side by side they would repeat each
other, and fresh episodes would be those of the training.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from qcrl.envs.host.boundary import Single
from qcrl.kinds import GymEnv

Generator = np.random.Generator | np.random.RandomState


def disobeys(trial: Single) -> bool:
    """Whether episodes that were reset with the same seed begin differently."""
    return not np.array_equal(trial.reset(0), trial.reset(0))


def generators(env: GymEnv) -> Iterator[Generator]:
    """Those that the environment, or a part of it, keeps as an attribute."""
    kept = list(getattr(getattr(env, "unwrapped", env), "__dict__", {}).values())
    parts = [value for each in kept for value in getattr(each, "__dict__", {}).values()]
    found = {id(each): each for each in kept + parts if isinstance(each, Generator)}
    return iter(found.values())


class Seeded:
    """An environment whose generators are given the seed of a reset, which is then done once more."""

    def __init__(self, env: GymEnv) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not there yet: copied or restored
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, *, seed: int | None = None, **options: Any) -> Any:
        first = self.env.reset(seed=seed, **options)
        if seed is None:
            return first
        for place, generator in enumerate(generators(self.env)):
            if isinstance(generator, np.random.RandomState):
                generator.seed(np.random.SeedSequence([seed, place]).generate_state(4))
            else:
                words = type(generator.bit_generator)(np.random.SeedSequence([seed, place]))  # type: ignore[call-arg]
                generator.bit_generator.state = words.state
        return self.env.reset(**options)


def obeying(make: Callable[..., GymEnv], trial: Single) -> Callable[..., GymEnv]:
    """What makes the environment, so that it obeys seeds where that can be brought about; `trial` is one of it."""
    seeded = SeededMaker(make)
    helps = disobeys(trial) and not disobeys(Single(Seeded(trial.env), trial.source, trial.name, trial.masks))
    return seeded if helps else make


@dataclass(frozen=True)
class SeededMaker:
    """Makes them."""

    make: Callable[..., GymEnv]

    def __call__(self, **options: Any) -> Seeded:
        return Seeded(self.make(**options))
