"""Reinforcement learning under an outage constraint: Pr(episode cost > limit) <= probability."""

from qcrl.envs import make
from qcrl.errors import UserError

__version__ = "0.1.0"
__all__ = ["UserError", "make"]
