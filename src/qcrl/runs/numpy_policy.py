"""A trained policy that runs in NumPy alone, from what its file says of its network."""

from pathlib import Path

import numpy as np

from qcrl.envs.base import Description
from qcrl.errors import Untrusted, UserError
from qcrl.kinds import Json
from qcrl.runs import files, forward
from qcrl.runs.forward import Forward, Known, Memory
from qcrl.runs.policy import Pick, Policy


class NumpyPolicy(Policy):
    """One seed's policy, for quick single calls."""

    backend = "numpy"

    def __init__(self, env: Description, info: Json, arrays: forward.Arrays) -> None:
        super().__init__(env, info, tuple(info["forward"]["needs"]))
        self.forward: Forward = forward.build(info["forward"], arrays, env.action_size)

    def _blank(self, rng: np.random.Generator, *batch: int) -> Memory:
        return self.forward.blank(*batch)

    def _mix(self, pick: Pick, old: Memory, new: Memory) -> Memory:
        return tuple(map(pick, old, new))

    def _act(
        self, known: Known, memory: Memory, rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, Memory]:
        head, after = self.forward(known, memory)
        return forward.draw(self.forward, head, rng, deterministic), after


def load(path: Path) -> NumpyPolicy:
    """The policy in this file."""
    try:
        info, arrays = files.read_arrays(path)
        env = Description.from_dict(info["environment"])
        if info.get("forward") is not None:
            return NumpyPolicy(env, info, arrays)
    except Untrusted:
        raise
    except Exception as error:  # a file may say anything of how it acts
        raise UserError(f"{path} is not a policy of this version of qcrl ({error}); train it again") from error
    if info.get("mixture"):
        raise UserError(f"{path} is a mixture of policies, which only JAX can run; use the backend jax, or one of them")
    raise UserError(
        f"{path} does not say how its policy acts without JAX: its algorithm is one of your own, or it was trained "
        "before that was written down; use the backend jax, or train it again"
    )
