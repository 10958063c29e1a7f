"""The run folder, as training claims it: what config.json says, and whether a folder may be used."""

import contextlib
import json
import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from qcrl.algos import hyperparameters
from qcrl.algos.algorithm import Algorithm
from qcrl.envs.base import Description
from qcrl.envs.host.costs import QUOTED, places
from qcrl.errors import UserError
from qcrl.kinds import Json
from qcrl.runs import checkpoints, shapes
from qcrl.runs.files import locked
from qcrl.runs.folder import FORMAT, check_format, read_config
from qcrl.runs.lane import Lane
from qcrl.sampling.program import Workers
from qcrl.version import __version__

SAME_ON_RESUME = ("algorithm", "environment", "seeds", "probabilities", "limits", "lanes")
FOREVER = 1e9
"""Seconds that stand for infinity, which JSON has not."""
VERSIONS_OF = ("jax", "jaxlib", "optax", "numpy")


def describe(algorithm: Algorithm, preset: str | None, env: Description, lanes: Sequence[Lane], steps: int) -> Json:
    """The content of config.json: everything needed to run again."""
    device = jax.devices()[0]
    config = {
        "format": FORMAT,
        "algorithm": hyperparameters.to_json(algorithm),
        "preset": preset,
        "environment": env.as_dict(),
        "steps": steps,
        "seeds": list(dict.fromkeys(lane.seed for lane in lanes)),
        "probabilities": list(dict.fromkeys(lane.probability for lane in lanes)),
        "limits": list(dict.fromkeys(lane.limit for lane in lanes)),
        "lanes": [lane.as_dict() for lane in lanes],
        "setup": {
            "python": platform.python_version(),
            "qcrl": __version__,
            **{name: metadata.version(name) for name in VERSIONS_OF},
            "device": f"{device.platform}: {device.device_kind}",
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
        },
    }
    return json.loads(json.dumps(config))


def stepping(workers: Workers, checkpoint_interval: float) -> Json:
    """What may change when a run goes on, and is kept unless it does; but the reaction to errors stays."""
    return {
        "workers": int(workers.processes),
        "step_timeout": min(float(workers.timeout), FOREVER),
        "on_error": workers.on_error,
        "checkpoint_interval": min(float(checkpoint_interval), FOREVER),
    }


@contextlib.contextmanager
def open_folder(out: str | Path | None, config: Json, resume: bool, say: Callable[[str], None]) -> Iterator[Path]:
    """A folder that this run, and no other process, may write to. A full disk ends in one sentence."""
    folder = Path(out) if out is not None else _new_folder(config)
    try:
        fresh = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, f"another process is training in {folder}; wait for it, or give another --out"):
            _claim(folder, config, resume, say)
            try:
                yield folder
            except UserError:
                if fresh:
                    _forget(folder)
                raise
    except OSError as error:
        begun = (folder / "config.json").exists()
        advice = f"mend that, and then continue with: {resume_command(folder, config)}"
        raise UserError(
            f"cannot write to {folder} ({error.strerror or error}); {advice if begun else 'give another --out'}"
        ) from error


def resume_command(folder: Path, config: Json) -> str:
    """What continues this run, with the user's own modules that it names."""
    return f"qcrl train --resume --out {folder}{trusting(config)}"


def trusting(config: Json) -> str:
    """Options that let a run name what it was trained with."""
    environment = config["environment"]
    named = [config["algorithm"]["name"], environment["id"]]
    named += [cost for cost in places(environment.get("cost")) if not re.fullmatch(QUOTED, cost)]
    named += [constraint["kind"] for lane in config["lanes"] for constraint in lane["constraints"]]
    modules = dict.fromkeys(text.rpartition(":")[0] for text in named if ":" in text)
    return "".join(f" --trust {module}" for module in modules)


def _forget(folder: Path) -> None:
    """A run that was refused before anything was trained leaves no folder behind."""
    if [path.name for path in folder.iterdir()] == ["config.json"]:
        (folder / "config.json").unlink()
        folder.rmdir()


def _new_folder(config: Json) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    named = re.sub(r"[^\w.+-]", ".", f"{config['algorithm']['name']}-{config['environment']['id']}")
    name = f"{stamp}-{named}"
    numbered = (Path("runs") / (name if n == 1 else f"{name}-{n}") for n in range(1, 1000))
    return next(path for path in numbered if not path.exists())


def _claim(folder: Path, config: Json, resume: bool, say: Callable[[str], None]) -> None:
    """Write config.json into a fresh folder, or check that it describes the same run."""
    occupied = any(not path.name.startswith(".") for path in folder.iterdir())
    if not occupied:
        if resume:
            say(f"there is no run in {folder} yet, so one is started")
    elif not resume:
        raise UserError(f"{folder} exists already; continue that run with --resume, or give another --out")
    else:
        stored = read_config(folder)
        check_format(folder, stored)
        read_config(folder, shapes.RESUMED)
        # A setting that is newer than the run has its default in it.
        try:
            settings = hyperparameters.to_json(hyperparameters.from_json(stored["algorithm"]))
        except (UserError, KeyError, TypeError, AttributeError, ValueError) as error:
            raise UserError(
                f"{folder / 'config.json'} is not one of this version of qcrl ({error}); give another --out"
            ) from error
        stored["algorithm"] = json.loads(json.dumps(settings))
        pairs = {key: (stored.get(key), config[key]) for key in SAME_ON_RESUME}
        if "stepping" in stored:
            pairs["on_error"] = (stored["stepping"]["on_error"], config["stepping"]["on_error"])
        for key, (old, new) in pairs.items():
            if old != new:
                raise UserError(
                    f"{folder} was started with another {_difference(key, old, new)}; "
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
        return  # nothing is written before it is known that the run can go on
    write_config(folder, config)


def write_config(folder: Path, config: Json) -> None:
    """config.json as it is from now on."""
    checkpoints.write_file(folder / "config.json", (json.dumps(config, indent=1) + "\n").encode())


def _difference(name: str, old: Any, new: Any) -> str:
    """What differs, as deep down as it can be named."""
    if isinstance(old, dict) and isinstance(new, dict):
        name = next(key for key in {**old, **new} if old.get(key) != new.get(key))
        return _difference(name, old.get(name), new.get(name))
    return f"{name} ({old}, now {new})"
