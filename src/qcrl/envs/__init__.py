"""Environments: one description per task, a JAX engine, a MuJoCo engine, and adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qcrl.envs.point.tasks import TASKS
from qcrl.errors import UserError

if TYPE_CHECKING:
    from qcrl.envs.base import Environment

ENVIRONMENT_IDS = (*TASKS, "TwoPathEnv-v0")


def make(id: str) -> Environment:
    """The functional JAX environment with this id."""
    if id in TASKS:
        from qcrl.envs.point.jax_engine import PointEnv

        return PointEnv(TASKS[id])
    if id == "TwoPathEnv-v0":
        from qcrl.envs.two_path import TwoPathEnv

        return TwoPathEnv()
    raise UserError(f"there is no environment {id!r}; the known ones are {', '.join(ENVIRONMENT_IDS)}")
