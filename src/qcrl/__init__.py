"""Reinforcement learning under an outage constraint: Pr(episode cost > limit) <= probability."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from qcrl.version import __version__ as __version__

if TYPE_CHECKING:
    from qcrl import stats
    from qcrl.constraints import CVaR, Mean, Outage
    from qcrl.envs import make
    from qcrl.errors import UserError
    from qcrl.evaluation.evaluate import evaluate
    from qcrl.evaluation.promise import certify, train
    from qcrl.evaluation.verdict import verdict
    from qcrl.runs.folder import load
    from qcrl.runs.policy import Policy
    from qcrl.sweeps import sweep

__all__ = [
    "CVaR",
    "Mean",
    "Outage",
    "Policy",
    "UserError",
    "certify",
    "evaluate",
    "load",
    "make",
    "stats",
    "sweep",
    "train",
    "verdict",
]

_HOMES = {
    "CVaR": "constraints",
    "Mean": "constraints",
    "Outage": "constraints",
    "Policy": "runs.policy",
    "UserError": "errors",
    "certify": "evaluation.promise",
    "evaluate": "evaluation.evaluate",
    "load": "runs.folder",
    "make": "envs",
    "sweep": "sweeps",
    "train": "evaluation.promise",
    "verdict": "evaluation.verdict",
}


if find_spec("gymnasium") is not None:  # a bare machine can train without it
    from qcrl.envs.adapters import gym as _gym  # noqa: F401 - registers qcrl's environments


def __getattr__(name: str) -> Any:
    """Public names are fetched on first use, so that importing qcrl, and `qcrl --help`, do not wait for JAX."""
    if name in _HOMES:
        try:
            return getattr(import_module(f"qcrl.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name != "jax":
                raise
            advice = "pip install jax, or run a policy without it: qcrl.Policy.load(file)"
            raise ModuleNotFoundError(f"qcrl.{name} needs JAX, which is not installed; {advice}", name="jax") from None
    if name in __all__:
        return import_module(f"qcrl.{name}")
    raise AttributeError(f"module 'qcrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
