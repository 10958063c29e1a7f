"""Environments that do not obey the seed of a reset: their random generators are given it by hand.

Instances of such an environment often all draw the same row of episodes. Trained side by side they would repeat each
other, and fresh episodes would be those of the training.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from qcrl.envs.host import boundary
from qcrl.envs.host.boundary import Single
from qcrl.envs.host.spaces import describe_actions, random_actions
from qcrl.errors import BrokenEnvironment
from qcrl.kinds import GymEnv

STEPS, SECONDS = 20, 3.0
"""How much is compared: so many steps. Fewer, but one at least, where a step takes very long."""
REPEATS = (
    "its instances have the same episodes, although they are reset with different seeds, and it keeps no generator "
    "that could be given them: a training repeats itself, and a certificate proves nothing, so let reset seed all "
    "that is random, and clear the rest"
)
"""What is wrong where nothing helps."""
Generator = np.random.Generator | np.random.RandomState | random.Random


def beginning(trial: Single, seed: int) -> Iterator[Float[np.ndarray, " number"]]:
    """All that episodes bring, step by step, with seeds from this one on, and the same actions every time."""
    rng, begun, taken = np.random.default_rng(0), time.monotonic(), 0
    actions, size = describe_actions(trial.env.action_space, trial.name)
    try:
        while taken < STEPS and (not taken or time.monotonic() - begun < SECONDS):
            obs, ended = trial.reset(seed), False
            yield obs.copy()
            while not ended and taken < STEPS and (not taken or time.monotonic() - begun < SECONDS):
                action = random_actions(actions, size, rng, obs[None, obs.size - trial.masks :])[0]
                obs, reward, cost, terminated, truncated = trial.step(action)
                yield np.array([*obs, reward, *cost, terminated, truncated])
                taken, ended = taken + 1, terminated or truncated
            seed += 1
    except BrokenEnvironment:  # told when it is trained on, and may be made anew there
        return


def differ(one: Sequence[np.ndarray], two: Iterator[np.ndarray]) -> bool | None:
    """As far as both go: one may have broken, or have been slower. None where there is nothing to compare."""
    compared = False
    for a, b in zip(one, two):
        if not np.array_equal(a, b):
            return True
        compared = True
    return False if compared else None


def disobeys(trial: Single) -> bool | None:
    """Whether episodes that were reset with the same seeds differ; None where none began."""
    return differ(list(beginning(trial, 0)), beginning(trial, 0))


def repeats(make: Callable[..., GymEnv], trial: Single) -> bool:
    """Whether new instances have the same episodes, although they are reset with different seeds."""
    made = []
    try:
        for _ in range(2):
            made.append(Single(boundary.make(make, trial.name), trial.source, trial.name, trial.masks))
        return differ(list(beginning(made[0], 0)), beginning(made[1], STEPS)) is False
    except BrokenEnvironment:  # there may be few
        return False
    finally:
        for each in made:
            boundary.close(each.env, trial.name)


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
            own = np.random.SeedSequence([seed, place])
            if isinstance(generator, random.Random):
                generator.seed(own.generate_state(4).tobytes())
            elif isinstance(generator, np.random.RandomState):
                generator.seed(own.generate_state(4))
            else:
                generator.bit_generator.state = type(generator.bit_generator)(own).state  # type: ignore[call-arg]
        return self.env.reset(**options)


def obeying(make: Callable[..., GymEnv], trial: Single) -> tuple[Callable[..., GymEnv], bool]:
    """What makes the environment, so that it obeys seeds where that can be brought about; `trial` is one of it.

    And whether instances repeat each other all the same.
    """
    if not disobeys(trial):
        return make, False
    if disobeys(Single(Seeded(trial.env), trial.source, trial.name, trial.masks)) is False:
        return SeededMaker(make), False
    return make, repeats(make, trial)


@dataclass(frozen=True)
class SeededMaker:
    """Makes them."""

    make: Callable[..., GymEnv]

    def __call__(self, **options: Any) -> Seeded:
        return Seeded(self.make(**options))
