"""How much memory programs and states take, from their shapes alone: nothing is compiled or run."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import jax

from qcrl.errors import UserError
from qcrl.kinds import Tree

if TYPE_CHECKING:  # a tenth of a second
    from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var


def tree_bytes(tree: Tree) -> int:
    """All arrays of a tree, or of their shapes, together."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def device_memory() -> int:
    """Bytes of one local device; on a CPU what the machine has free."""
    return _limit() or os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // len(jax.local_devices())


def require_memory(needed: int, what: str, devices: int = 1) -> None:
    """Raise where something cannot fit, however little else there is."""
    there = devices * _limit() or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise UserError(
            f"{what} take {_gigabytes(needed)} at least, but there are {_gigabytes(there)}; give fewer lanes, "
            "environments, steps per iteration or units"
        )


def _limit() -> int:
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"


def peak(program: Jaxpr) -> int:
    """Most bytes alive at once if every value is kept from where it is made to where it is used last."""
    given = {*program.invars, *program.constvars}
    last = {var: place for place, step in enumerate(program.eqns) for var in _variables(step.invars)}
    last |= dict.fromkeys(_variables(program.outvars), len(program.eqns))
    alive = most = sum(map(_bytes, given))
    for place, step in enumerate(program.eqns):
        alive += sum(map(_bytes, step.outvars))
        within = (peak(inner) - sum(map(_bytes, inner.invars)) for inner in _programs(step))
        most = max(most, alive + max(within, default=0))
        done = {var for var in _variables([*step.invars, *step.outvars]) if last.get(var, -1) <= place}
        alive -= sum(map(_bytes, done - given))
    return most


def _variables(values: Iterable[Var | Literal]) -> Iterator[Var | Literal]:
    return (value for value in values if not hasattr(value, "val"))  # literals take no room


def _programs(step: JaxprEqn) -> Iterator[Tree]:
    for parameter in step.params.values():
        for each in parameter if isinstance(parameter, tuple | list) else (parameter,):
            program = getattr(each, "jaxpr", each)
            if hasattr(program, "eqns"):
                yield program


def _bytes(var: Tree) -> int:
    return math.prod(var.aval.shape) * var.aval.dtype.itemsize if hasattr(var.aval, "shape") else 0
