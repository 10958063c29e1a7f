"""Settings that fit a training: schedules as long as it is, and for an environment in Python a batch that its simulator
fills in seconds, and what follows from it."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from qcrl.algos import hyperparameters
from qcrl.algos.algorithm import Algorithm
from qcrl.algos.find import name_of
from qcrl.envs.host.environment import HostEnv
from qcrl.envs.host.spaces import random_actions
from qcrl.errors import BrokenEnvironment, WorkerFailure
from qcrl.kinds import Json, Settings
from qcrl.runs.folder import read_config
from qcrl.sampling.program import Workers

MEASURED = 0.5
"""Seconds that the simulator is tried for, if one step does not take longer."""
PATIENCE = 10.0
"""Seconds that it may take to fill a batch."""
LEAST = 256
"""Steps of the smallest batch."""
MINIBATCH = 64
"""Steps that a gradient step is taken on."""


SETTLING = 1.1
"""The learning rate falls as if it were to be 0 after so many times the training: with `learning_rate_flat` at 0.6 it
falls in the last third, and a quarter of it is left at the end."""


class Pace(NamedTuple):
    """How quickly an environment is stepped, and how long its episodes are."""

    steps_per_second: float
    episode_length: float | None
    """None where none has ended."""


def measure(env: HostEnv, workers: Workers, say: Callable[[str], None], seconds: float = MEASURED) -> Pace:
    """With random actions, in a worker where there are any; until it breaks too often, where it may break."""
    rng, steps, ended = np.random.default_rng(0), 0, 0
    restart = workers.on_error == "restart"
    with closing(env.fleet(1, max(0, min(1, workers.processes)), workers.timeout, say, restart)) as fleet:
        obs = fleet.reset([0])
        begun = time.perf_counter()
        while (taken := time.perf_counter() - begun) < seconds or not steps:
            masks = obs[:, obs.shape[1] - env.masks :]
            try:
                out = fleet.step(random_actions(env.actions, env.action_size, rng, masks))
            except (BrokenEnvironment, WorkerFailure):
                if not restart or not steps:
                    raise
                break
            obs, ended = out.obs, ended + int(out.ended.sum())
            steps += 1
    return Pace(steps / taken, steps / ended if ended else None)


def batch(pace: Pace, most: int, workers: int = 0) -> int:
    """Steps of a batch: `most`, or a half, a quarter and so on of it, so that it is full in some seconds."""
    full = pace.steps_per_second * max(1, workers) * PATIENCE
    halvings = max(0, math.ceil(math.log2(most / max(full, 1.0))))
    return max(LEAST, most >> halvings)


COUNTS = ("num_envs", "steps_per_env", "chunk_length")
"""What batches are made of."""
GAINS = 200
"""Times that the multiplier's gains count in a training: it must be able to rise in a short one, and not swing in a
long one."""

FITTED = (
    *("num_envs", "steps_per_env", "chunk_length", "minibatches", "separate_critics"),
    *("learning_rate_end", "gain_steps"),
)
"""What `complete` may choose."""
SCHEDULES = "learning_rate_halving", "learning_rate_end", "falls_for"
"""What is as long as the training, where the learning rate ends with it."""


def chosen_before(out: str | Path | None) -> Settings:
    """What was chosen when the run in this folder began, so that it is the same when it goes on."""
    stored = _fields(_before(out))
    return {name: stored[name] for name in FITTED if name in stored}


def kept_before(out: str | Path | None, algorithm: Algorithm, preset: str | None, given: Settings) -> Settings:
    """What the run in this folder goes on with, whatever presets and lengths say now; what is given stays."""
    before = _before(out)
    stored = _fields(before)
    if not stored:
        return {}
    kept = {"candidates": stored.get("candidates", 1)}  # one that is older than the choice goes on without
    if (before.get("preset"), before["algorithm"].get("name")) != (preset, name_of(algorithm)):
        return kept
    schedules = {name: stored.get(name) for name in _schedules(algorithm) - given.keys()}
    if not schedules or not all(isinstance(value, int | float) for value in schedules.values()):
        return kept
    longer = [value / getattr(algorithm, name) for name, value in schedules.items()]
    # Else somebody gave one of them, and has to give it again.
    return kept | schedules if math.isclose(min(longer), max(longer), rel_tol=1e-9) else kept


def _schedules(algorithm: Algorithm) -> set[str]:
    """Those of a preset that are as long as the training: all that it has, where its learning rate ends."""
    if not math.isfinite(getattr(algorithm, "learning_rate_end", math.inf)):
        return set()
    return {name for name in SCHEDULES if hasattr(algorithm, name)}


def preset_before(out: str | Path | None) -> str | None:
    """That of the run in this folder, if there is one."""
    return _before(out).get("preset")


def _before(out: str | Path | None) -> Json:
    """The configuration of the run in this folder, if there is one."""
    return {} if out is None or not (Path(out) / "config.json").exists() else read_config(Path(out))


def _fields(config: Json) -> Settings:
    return config.get("algorithm", {}).get("fields", {})


def scheduled(algorithm: Algorithm, preset: str, steps: float, given: Settings) -> Algorithm:
    """With schedules that end with the training as they end with one of the preset's own length."""
    usual, own = type(algorithm).presets.get(preset), type(algorithm).lengths.get(preset)
    if usual is None or own is None:
        return algorithm
    changed = _schedules(usual) - given.keys()
    longer = (steps / algorithm.steps_per_iteration) / (own / usual.steps_per_iteration)
    return dataclasses.replace(algorithm, **{name: longer * getattr(algorithm, name) for name in sorted(changed)})


def complete(
    algorithm: Algorithm, env: HostEnv, given: Settings, steps: float, workers: Workers, say: Callable[[str], None]
) -> Settings:
    """What was given, and what fits it: the batch to the simulator, the rest to the batch and the training's steps."""
    filled = dict(given)
    with contextlib.suppress(ValueError, OverflowError):
        filled |= {name: hyperparameters.coerce(int, given[name]) for name in COUNTS if name in given}
    if not all(isinstance(filled.get(name, 1), int) and filled.get(name, 1) > 0 for name in COUNTS):
        return filled  # is refused with the reason later
    if env.make is not None and not {"num_envs", "steps_per_env"} & given.keys():
        pace = measure(env, workers, say)
        size = batch(pace, algorithm.steps_per_iteration, workers.processes)
        filled["num_envs"] = algorithm.num_envs if size >= algorithm.steps_per_iteration else algorithm.num_envs // 2
        filled["steps_per_env"] = size // filled["num_envs"]
        speed, length = pace
        lasts = "no episode has ended so far" if length is None else f"an episode has about {length:,.0f} steps"
        shape = f"{filled['num_envs']} environments x {filled['steps_per_env']} steps"
        say(f"{env.id} takes {speed:,.{0 if speed >= 10 else 2}f} steps a second, and {lasts}: an iteration is {shape}")
    if not hasattr(algorithm, "chunk_length"):
        return filled
    value = lambda name: filled.get(name, getattr(algorithm, name))
    if value("lstm_size"):
        filled.setdefault("separate_critics", False)
    length = value("steps_per_env")
    if length % value("chunk_length"):
        filled.setdefault("chunk_length", length)
    if "minibatches" not in given:
        remembers = value("lstm_size") or value("late_cost")
        pieces = value("num_envs") * length // (value("chunk_length") if remembers else 1)
        wanted = max(1, min(pieces, value("num_envs") * length // MINIBATCH))
        filled["minibatches"] = next(count for count in range(wanted, 0, -1) if pieces % count == 0)
    if not {"learning_rate_end", "learning_rate_halving"} & given.keys():
        filled["learning_rate_end"] = SETTLING * math.ceil(steps / (value("num_envs") * length))
    filled.setdefault("gain_steps", math.ceil(steps / GAINS))
    return filled
