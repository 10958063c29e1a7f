"""Environments for the tests of host rollouts. Worker processes import them from here."""

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

SMALL = {"num_envs": 2, "steps_per_env": 40, "chunk_length": 10, "hidden_sizes": (8,), "lstm_size": 0}
"""Settings that train within a second."""


class Ragged(gymnasium.Env):
    """Episodes of 3 to 8 steps with costs that no float32 can hold. It observes its episode and step."""

    observation_space = Box(-1.0, np.inf, (2,))
    action_space = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 4.0], np.float32))

    def __init__(self):
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.time, self.length = self.episode + 1, 0, int(self.np_random.integers(3, 9))
        return self.observe(), {}

    def observe(self):
        return np.array([self.episode, self.time], np.float32)

    def step(self, action):
        assert self.action_space.contains(action), action
        self.time += 1
        cost, ended = self.np_random.exponential(), self.time == self.length
        cut = ended and self.length % 2 == 0
        return self.observe(), float(action[0]), ended and not cut, bool(cut), {"cost": cost}


class OneStep(gymnasium.Env):
    """One step, best with an action of 2 plus the number observed; the other observation says that it is over.

    Where the number is negative the episode is cut off, else it has terminated. It can be told to fail at some step.
    """

    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Box(0.0, 4.0, (1,))

    def __init__(self, fails_at=0):
        self.fails_at, self.steps = fails_at, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = self.np_random.uniform(-1.0, 1.0)
        return np.array([self.seen, 0.0], np.float32), {}

    def step(self, action):
        self.steps += 1
        assert self.steps != self.fails_at
        reward = -((action[0] - 2.0 - self.seen) ** 2) / 4.0
        obs, cut = np.array([self.seen, 1.0], np.float32), self.seen < 0
        return obs, float(reward), not cut, cut, {"cost": self.np_random.exponential()}


class Written(gymnasium.Wrapper):
    """Sums costs by itself and appends the sum of every whole episode to a file of its own."""

    def __init__(self, env, folder):
        super().__init__(env)
        self.path = Path(folder) / f"{os.getpid()}-{id(self)}.txt"
        self.total = 0.0

    def reset(self, **options):
        self.total = 0.0
        return self.env.reset(**options)

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.total += info["cost"]
        if terminated or truncated:
            with open(self.path, "a") as file:
                file.write(f"{self.total!r}\n")
        return obs, reward, terminated, truncated, info


def written(folder):
    """How often each sum was written there."""
    return Counter(float(line) for path in Path(folder).glob("*.txt") for line in path.read_text().split())


class Faulty(Ragged):
    """From its 10th step on the cost is what it is told; `leave out` reports none."""

    def __init__(self, fault):
        super().__init__()
        self.fault, self.steps = fault, 0

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.steps += 1
        if self.steps >= 10:
            info = {} if self.fault == "leave out" else {"cost": self.fault}
        return obs, reward, terminated, truncated, info


class Mortal(Ragged):
    """While a file named `how` is in the folder: removes it at its 50th step, and its process is killed, or hangs."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.steps = Path(folder), 0

    def step(self, action):
        self.steps += 1
        if self.steps == 50:
            for how in ("die", "hang"):
                try:
                    (self.folder / how).rename(self.folder / f"{how} was done")
                except FileNotFoundError:  # not asked for, or another process was first
                    continue
                os.kill(os.getpid(), signal.SIGKILL) if how == "die" else time.sleep(1000)
        return super().step(action)


class SixValues(Ragged):
    """As in Safety-Gymnasium."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, info.pop("cost"), terminated, truncated, info


class Nested(gymnasium.Env):
    """Observes a dictionary, and chooses between -1, 0 and 1."""

    observation_space = gymnasium.spaces.Dict({"b": Discrete(3), "a": Box(-1.0, 1.0, (2, 2))})
    action_space = Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return {"b": 2, "a": np.full((2, 2), 0.5, np.float32)}, {}

    def step(self, action):
        assert action in (-1, 0, 1)
        self.time += 1
        obs = {"b": self.time % 3, "a": np.zeros((2, 2), np.float32)}
        return obs, float(action), False, self.time == 5, {"penalty": float(action == 1)}


class TwoCosts(Ragged):
    """Reports a collision and its energy: by name, in a row, and under keys of their own."""

    def __init__(self, kind="dict"):
        super().__init__()
        self.kind = kind

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        collision, energy = float(info["cost"] > 1), float(np.mean(np.square(action)))
        held = {"collision": collision, "energy": energy} if self.kind == "dict" else np.array([collision, energy])
        info = {"cost": held, "cost_collision": collision, "cost_energy": energy}
        return obs, reward, terminated, truncated, info


def row_of_costs():
    return TwoCosts("row")


def double(obs, action, next_obs, info):
    return 2 * info["cost_energy"]


class BrightPixel(gymnasium.Env):
    """One pixel of a dark image is bright: 1 is right where it is in the right half, else 0. A choice costs what it is.

    With a vector beside it every other image is dark, and the vector says which. Episodes have 8 steps.
    """

    action_space = Discrete(2)

    def __init__(self, beside=False, shape=(12, 12, 1)):
        image = Box(0, 255, shape, np.uint8)
        self.beside, self.shape = beside, shape
        self.observation_space = Dict({"a": Box(-1.0, 1.0, (2,)), "image": image}) if beside else image

    def observe(self):
        image, place = np.zeros((12, 12), np.uint8), self.np_random.integers(12, size=2)
        self.answer, told = int(place[1] >= 6), np.zeros(2, np.float32)
        if self.beside and self.time % 2:
            told[0] = 2 * self.answer - 1
        else:
            image[tuple(place)] = 200
        seen = np.broadcast_to(image.reshape([side if side == 12 else 1 for side in self.shape]), self.shape)
        return {"a": told, "image": seen} if self.beside else seen

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action):
        right = action == self.answer
        self.time += 1
        return self.observe(), float(right), False, self.time == 8, {"cost": float(action)}


class Sleepy(Ragged):
    """Every step takes so many seconds."""

    seconds = 1.0

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


class Drawn(Ragged):
    """Its picture is as bright as the step is late: 20 for every step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode = render_mode

    def render(self):
        return np.full((24, 48, 3), 20 * self.time, np.uint8)


class InPlace(gymnasium.Env):
    """Walks to the right by one a step, and observes one array that it changes in place. Episodes have 5 steps."""

    observation_space = Box(0.0, 9.0, (1,))
    action_space = Discrete(2)

    def __init__(self, nested=False):
        self.nested, self.place = nested, np.zeros(1, np.float32)
        if nested:
            self.observation_space = Dict({"place": self.observation_space})

    def observe(self):
        return {"place": self.place} if self.nested else self.place

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place[:] = 0
        return self.observe(), {}

    def step(self, action):
        self.place += 1
        return self.observe(), 0.0, False, bool(self.place[0] == 5), {}


def moved(obs, action, next_obs, info):
    before, after = (each["place"] if isinstance(each, dict) else each for each in (obs, next_obs))
    return float(np.abs(after - before).sum())


class Deaf(gymnasium.Env):
    """Ignores seeds: every instance draws the same row of episodes, from a generator that a part of it keeps."""

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)

    class Weather:
        def __init__(self):
            self.rng = np.random.default_rng(0)

    def __init__(self):
        self.weather = self.Weather()

    def reset(self, *, seed=None, options=None):
        return np.array([self.weather.rng.random()], np.float32), {}

    def step(self, action):
        return self.reset()[0], 0.0, True, False, {"cost": 1.0}


class Late(gymnasium.Env):
    """Ignores seeds, which the first observation does not show: ten steps that a generator of its own decides."""

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        drawn = self.rng.random()
        return np.array([drawn], np.float32), 0.0, False, self.time == 10, {"cost": float(drawn > 0.5)}


class LateByPython(Late):
    """With a generator of Python's."""

    def __init__(self):
        self.rng = random.Random(0)


class LateAndHidden(Late):
    """With a generator that nobody finds."""

    def __init__(self):
        self.rng = Hidden()


class Hidden:
    __slots__ = ("random",)

    def __init__(self):
        self.random = np.random.default_rng(0).random
