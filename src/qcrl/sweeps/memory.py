"""How much memory a lane needs, and how a cell is split into groups that fit a device."""

import jax

from qcrl.envs.base import Described
from qcrl.envs.find import find
from qcrl.runs.lane import Lane
from qcrl.sampling import memory, program
from qcrl.sampling.record import State
from qcrl.sweeps.grid import Cell
from qcrl.training import checks

MARGIN = 1.5
"""XLA's own figure is 1.1 (512-512, LSTM 512) to 1.4 times (64-64) the estimate on a CPU."""
SHARE = 0.8
"""Of the device's memory that a group may take; the rest is for code, evaluation and other processes."""


def lanes_that_fit(cell: Cell) -> int:
    """Most lanes that the local devices hold together."""
    return max(1, int(SHARE * memory.device_memory() / bytes_per_lane(cell))) * len(jax.local_devices())


def bytes_per_lane(cell: Cell) -> int:
    """State and intermediate values of one iteration, from shapes alone: nothing is compiled or run.

    Of environments that run in Python only the state is counted.
    """
    steps = program.trace(cell.algorithm, _setting(cell)[0], _state(cell))
    return int(MARGIN * (state_bytes(cell) if steps is None else memory.peak(steps)))


def state_bytes(cell: Cell) -> int:
    """What a lane carries from iteration to iteration."""
    return memory.tree_bytes(_state(cell))


def _state(cell: Cell) -> State:
    env, lane = _setting(cell)
    return jax.eval_shape(lambda: cell.algorithm.init(env, jax.random.key(0), lane.constraints))


def _setting(cell: Cell) -> tuple[Described, Lane]:
    """The environment with the costs that are trained on, and one of the lanes."""
    lanes = checks.lanes(cell.algorithm, cell.asked[0], 1, 0)
    return checks.reporting(find(cell.environment, cell.cost or None), lanes), lanes[0]
