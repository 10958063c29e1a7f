"""How much memory a lane needs, and how a cell is split into groups that fit a device."""

import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from qcrl.envs.find import find
from qcrl.sampling import program
from qcrl.sampling.record import State
from qcrl.sweeps.grid import Cell
from qcrl.training.checks import trained_under

MARGIN = 1.5
"""XLA's own figure is 1.1 (512-512, LSTM 512) to 1.4 times (64-64) the estimate on a CPU."""
SHARE = 0.8
"""Of the device's memory that a group may take; the rest is for code, evaluation and other processes."""


def lanes_that_fit(cell: Cell) -> int:
    """Most lanes that the local devices hold together."""
    return max(1, int(SHARE * device_memory() / bytes_per_lane(cell))) * len(jax.local_devices())


def bytes_per_lane(cell: Cell) -> int:
    """State and intermediate values of one iteration, from shapes alone: nothing is compiled or run.

    Of environments that run in Python only the state is counted.
    """
    steps = program.trace(cell.algorithm, find(cell.environment), _state(cell))
    return int(MARGIN * (state_bytes(cell) if steps is None else _peak(steps)))


def state_bytes(cell: Cell) -> int:
    """What a lane carries from iteration to iteration."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(_state(cell)))


def _state(cell: Cell) -> State:
    env, constraint = find(cell.environment), trained_under(cell.algorithm, cell.constraints[0])
    return jax.eval_shape(lambda: cell.algorithm.init(env, jax.random.key(0), [constraint]))


def device_memory() -> int:
    """Bytes of one local device; on a CPU what the machine has free."""
    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return limit or os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // len(jax.local_devices())


def _peak(program: Jaxpr) -> int:
    """Most bytes alive at once if every value is kept from where it is made to where it is used last."""
    given = {*program.invars, *program.constvars}
    last = {var: place for place, step in enumerate(program.eqns) for var in _variables(step.invars)}
    last |= dict.fromkeys(_variables(program.outvars), len(program.eqns))
    alive = most = sum(map(_bytes, given))
    for place, step in enumerate(program.eqns):
        alive += sum(map(_bytes, step.outvars))
        within = (_peak(inner) - sum(map(_bytes, inner.invars)) for inner in _programs(step))
        most = max(most, alive + max(within, default=0))
        done = {var for var in _variables([*step.invars, *step.outvars]) if last.get(var, -1) <= place}
        alive -= sum(map(_bytes, done - given))
    return most


def _variables(values: Iterable[Var | Literal]) -> Iterator[Var | Literal]:
    return (value for value in values if not hasattr(value, "val"))  # literals take no room


def _programs(step: JaxprEqn) -> Iterator[Any]:
    for parameter in step.params.values():
        for each in parameter if isinstance(parameter, tuple | list) else (parameter,):
            program = getattr(each, "jaxpr", each)
            if hasattr(program, "eqns"):
                yield program


def _bytes(var: Any) -> int:
    return math.prod(var.aval.shape) * var.aval.dtype.itemsize if hasattr(var.aval, "shape") else 0
