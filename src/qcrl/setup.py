"""Before the first iteration: which lanes are trained, how a run is described, and whether its folder may be used."""

import contextlib
import dataclasses
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from operator import index
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from qcrl import __version__, checkpoints, hyperparameters
from qcrl.algos import episode_window, replay_buffer
from qcrl.constraints import Constraint, CVaR, Mean, Outage
from qcrl.envs.host import Host
from qcrl.errors import UserError
from qcrl.policy import Interface
from qcrl.runs import Lane, make_lane, read_config

REPORTED_PROBABILITY = 0.1
"""Where a constraint names no probability, outage figures are reported for this one."""
TRAINED_UNDER: dict[str, type[Constraint]] = {
    "ppo_lag": Mean,
    "wcsac": CVaR,
    "wcsac_weibull": CVaR,
    "cvar_pg": CVaR,
}
"""Algorithms that do not train under the outage itself. From an outage constraint they take its limit as their own."""
SAME_ON_RESUME = ("algorithm", "environment", "seeds", "probabilities", "limits", "lanes")
VERSIONS_OF = ("jax", "jaxlib", "optax", "numpy")


def learning_rates(overrides: dict[str, Any]) -> tuple[dict[str, Any], list[float]]:
    """The hyper-parameters, and apart from them the learning rates where several are to be trained side by side."""
    given = overrides.get("learning_rate")
    if not isinstance(given, list | tuple):
        return overrides, []
    if not given or not all(isinstance(rate, int | float) and rate > 0 for rate in given):
        raise UserError(f"learning_rate is {given}, but each must be a number above 0; give one or a list of them")
    rest = {name: value for name, value in overrides.items() if name != "learning_rate"}
    return rest | {"learning_rate": given[0]}, [float(rate) for rate in given] if len(given) > 1 else []


def devices(lanes: int) -> Mesh:
    """The local devices that lanes are spread over: as many as share them evenly."""
    found = jax.local_devices()
    count = next(count for count in range(len(found), 0, -1) if lanes % count == 0)
    return Mesh(np.array(found[:count]), ("lanes",))


def lanes(
    algorithm: Any,
    constraint: Constraint | Sequence[Constraint],
    seeds: int | Sequence[int],
    first_seed: int,
    rates: Sequence[float] = (),
) -> tuple[Lane, ...]:
    """Seeds x constraints x learning rates, in this order; the last only where there are several."""
    constraints = [constraint] if isinstance(constraint, Constraint) else list(constraint)
    if not constraints:
        raise UserError("no constraint was given; give at least one, such as qcrl.Outage(limit=15, probability=0.1)")
    settings = [_setting(algorithm, each) for each in constraints]
    try:
        listed = list(map(index, seeds if isinstance(seeds, Iterable) else range(first_seed, first_seed + seeds)))
    except TypeError:
        listed = []
    if not listed or min(listed) < 0 or max(listed) >= 2**32:
        raise UserError(
            f"seeds is {seeds} and first_seed {first_seed}, but at least one seed between 0 and 4294967295 is needed; "
            "give how many, from 1 on, or a list"
        )
    tried: list[tuple[float, ...]] = [(rate,) for rate in rates] or [()]
    group = tuple(make_lane(seed, *setting, *rate) for seed in listed for setting in settings for rate in tried)
    if len(set(group)) < len(group):
        raise UserError("a seed, a constraint or a learning rate was given twice; give each of them once")
    return group


def _setting(algorithm: Any, constraint: Constraint) -> tuple[float, float]:
    """Probability and limit. An outage constraint is translated for every algorithm; others must be its own."""
    name = hyperparameters.name_of(algorithm)
    trained_under = TRAINED_UNDER.get(name, Outage)
    if not isinstance(constraint, (Outage, trained_under)):
        raise UserError(
            f"{name} trains under {trained_under.__name__}, not under "
            f"{type(constraint).__name__}; give qcrl.{trained_under.__name__} or qcrl.Outage"
        )
    match constraint:
        case Outage(limit, probability) | CVaR(limit, probability):
            return float(probability), float(limit)
        case Mean(limit):
            return REPORTED_PROBABILITY, float(limit)


def widen_window(algorithm: Any, lanes: Sequence[Lane], warn: Callable[[str], None]) -> Any:
    """With fewer than two allowed outages among the recent episodes, a quantile or outage cannot be told from them."""
    probability = min(lane.probability for lane in lanes)
    judged = ["window"] if getattr(algorithm, "driver", "mean") == "mean" else ["window", "driver_window"]
    wider = {name: episode_window(getattr(algorithm, name), probability) for name in judged}
    widened = dataclasses.replace(algorithm, **wider)
    if widened != algorithm:
        warn(
            f"warning: {algorithm.window} episodes hold fewer than two allowed outages at probability "
            f"{probability:g}, so the most recent {widened.window} are looked at"
        )
    return widened


def check_length(algorithm: Any, steps: float, warn: Callable[[str], None]) -> None:
    """A learning rate that falls, and a multiplier that rises with it, are meant for a length of training."""
    full = 3 * getattr(algorithm, "learning_rate_halving", 0.0) * algorithm.steps_per_iteration
    if steps < full < math.inf:
        warn(
            f"warning: {steps:,.0f} steps are few for a learning rate that halves every "
            f"{algorithm.learning_rate_halving:g} iterations; the outage may end above its target, so give {full:,.0f} or more"
        )


def check_memory(algorithm: Any, env: Any, lanes: int, say: Callable[[str], None]) -> None:
    """Say what a replay will take before it is taken; one that does not fit is an error."""
    if hasattr(algorithm, "replay_bytes"):
        host = isinstance(env, Host)
        used = devices(1 if host else lanes).devices.ravel()
        # While environments in Python are stepped, the replay of the iteration before is kept: a step may fail.
        say(replay_buffer.require_memory(lanes, (1 + host) * algorithm.replay_bytes(env), list(used)))


def describe(
    algorithm: Any, preset: str | None, interface: Interface, lanes: Sequence[Lane], steps: int
) -> dict[str, Any]:
    """The content of config.json: everything needed to run again."""
    device = jax.devices()[0]
    config = {
        "algorithm": hyperparameters.to_json(algorithm),
        "preset": preset,
        "environment": interface.as_dict(),
        "constraint": TRAINED_UNDER.get(hyperparameters.name_of(algorithm), Outage).__name__,
        "steps": steps,
        "seeds": list(dict.fromkeys(lane.seed for lane in lanes)),
        "probabilities": list(dict.fromkeys(lane.probability for lane in lanes)),
        "limits": list(dict.fromkeys(lane.limit for lane in lanes)),
        "lanes": [list(lane) for lane in lanes],
        "setup": {
            "python": platform.python_version(),
            "qcrl": __version__,
            **{name: metadata.version(name) for name in VERSIONS_OF},
            "device": f"{device.platform}: {device.device_kind}",
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
        },
    }
    return json.loads(json.dumps(config))


@contextlib.contextmanager
def open_folder(
    out: str | Path | None, config: dict[str, Any], resume: bool, say: Callable[[str], None]
) -> Iterator[Path]:
    """A folder that this run, and no other process, may write to. A full disk ends in one sentence."""
    folder = Path(out) if out is not None else _new_folder(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            _claim(folder, config, resume, say)
            yield folder
    except OSError as error:
        begun = (folder / "config.json").exists()
        advice = f"mend that, and then continue with: qcrl train --resume --out {folder}"
        raise UserError(
            f"cannot write to {folder} ({error.strerror or error}); {advice if begun else 'give another --out'}"
        ) from error


def _new_folder(config: dict[str, Any]) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{stamp}-{config['algorithm']['name']}-{config['environment']['id']}"
    numbered = (Path("runs") / (name if n == 1 else f"{name}-{n}") for n in range(1, 1000))
    return next(path for path in numbered if not path.exists())


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(f"another process is training in {folder}; wait for it, or give another --out") from None
    finally:
        os.close(descriptor)


def _claim(folder: Path, config: dict[str, Any], resume: bool, say: Callable[[str], None]) -> None:
    """Write config.json into a fresh folder, or check that it describes the same run."""
    occupied = any(not path.name.startswith(".") for path in folder.iterdir())
    if not occupied:
        if resume:
            say(f"there is no run in {folder} yet, so one is started")
    elif not resume:
        raise UserError(f"{folder} exists already; continue that run with --resume, or give another --out")
    else:
        stored = read_config(folder)
        # A setting that is newer than the run has its default in it.
        try:
            settings = hyperparameters.to_json(hyperparameters.from_json(stored["algorithm"]))
        except (UserError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{folder / 'config.json'} is not one of this version of qcrl ({error}); give another --out"
            ) from error
        stored["algorithm"] = json.loads(json.dumps(settings))
        for key in SAME_ON_RESUME:
            if stored.get(key) != config[key]:
                raise UserError(
                    f"{folder} was started with another {_difference(key, stored.get(key), config[key])}; "
                    "resume with the same settings, or give another --out"
                )
        if stored["steps"] > config["steps"]:
            raise UserError(
                f"{folder} was started for {stored['steps']} steps and cannot be cut to {config['steps']}; "
                "resume with as many or more"
            )
        if stored["setup"] != config["setup"]:
            say(
                "warning: versions, device or XLA flags differ from the first part of the run: not bit for bit the same"
            )
    checkpoints.write_file(folder / "config.json", (json.dumps(config, indent=1) + "\n").encode())


def _difference(name: str, old: Any, new: Any) -> str:
    """What differs, as deep down as it can be named."""
    if isinstance(old, dict):
        name = next(key for key in {**old, **new} if old.get(key) != new.get(key))
        return _difference(name, old.get(name), new.get(name))
    return f"{name} ({old}, now {new})"
