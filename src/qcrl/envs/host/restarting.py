"""Environments that are made anew where they break: the episode counts as cut off, and the others go on.

Workers import this: it imports no JAX.
"""

from collections.abc import Callable

import numpy as np

from qcrl.envs.host import boundary
from qcrl.envs.host.boundary import Single
from qcrl.envs.host.costs import CostSource
from qcrl.envs.host.fleet import Local, Step
from qcrl.errors import BrokenEnvironment, UserError
from qcrl.kinds import GymEnv

MOST = 100
"""Times that environments of one process may break."""
IN_A_ROW = 5
"""Times that one may break without a step between that went well."""


class Restarting(Local):
    """Environments in this process, each with the function that makes it anew."""

    def __init__(
        self,
        make: Callable[[], GymEnv],
        count: int,
        source: CostSource,
        env_id: str,
        first: int = 0,
        say: Callable[[str], None] = lambda text: None,
        masks: int = 0,
    ) -> None:
        super().__init__([boundary.make(make, env_id) for _ in range(count)], source, env_id, first, say, masks)
        self.make = make
        self.last = [np.zeros(0, np.float32)] * count
        self.broken = 0
        self.in_a_row = [0] * count

    def restarts(self) -> int:
        return self.broken

    def reset_one(self, index: int, seed: int | None) -> np.ndarray:
        while True:
            try:
                self.last[index] = super().reset_one(index, seed)
                return self.last[index]
            except BrokenEnvironment as error:
                self._make_anew(index, error)

    def step_one(self, index: int, action: np.ndarray) -> Step:
        """Where it breaks: its last observation once more, no reward and no cost, and the episode is cut off."""
        try:
            done = super().step_one(index, action)
        except BrokenEnvironment as error:
            self._make_anew(index, error)
            return self.last[index], 0.0, [0.0] * len(self.envs[index].source.each), False, True
        self.last[index], self.in_a_row[index] = done[0], 0
        return done

    def _make_anew(self, index: int, error: BrokenEnvironment) -> None:
        self.broken += 1
        self.in_a_row[index] += 1
        if self.broken > MOST or self.in_a_row[index] > IN_A_ROW:
            times = f"{self.in_a_row[index]} times in a row" if self.broken <= MOST else f"{self.broken} times"
            raise BrokenEnvironment(f"{error}; it broke {times}, which is too often to go on with on_error=restart")
        self.say(f"warning: {error}; restarted")
        old: Single = self.envs[index]
        try:
            boundary.close(old.env, old.where)
        except UserError as refused:
            self.say(f"warning: {refused}")
        self.envs[index] = Single(boundary.make(self.make, old.name), old.source, old.name, old.masks)
