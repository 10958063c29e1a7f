"""Reinforcement learning under an outage constraint: Pr(episode cost > limit) <= probability."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qcrl import stats
    from qcrl.certificates import certify
    from qcrl.constraints import CVaR, Mean, Outage
    from qcrl.envs import make
    from qcrl.errors import UserError
    from qcrl.evaluation import evaluate
    from qcrl.runs import load
    from qcrl.sweeps import sweep
    from qcrl.training import train

__version__ = "0.1.0"
__all__ = ["CVaR", "Mean", "Outage", "UserError", "certify", "evaluate", "load", "make", "stats", "sweep", "train"]

_HOMES = {
    "CVaR": "constraints",
    "Mean": "constraints",
    "Outage": "constraints",
    "UserError": "errors",
    "certify": "certificates",
    "evaluate": "evaluation",
    "load": "runs",
    "make": "envs",
    "sweep": "sweeps",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    """Public names are fetched on first use, so that importing qcrl, and `qcrl --help`, do not wait for JAX."""
    if name in _HOMES:
        return getattr(import_module(f"qcrl.{_HOMES[name]}"), name)
    if name in __all__:
        return import_module(f"qcrl.{name}")
    raise AttributeError(f"module 'qcrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
