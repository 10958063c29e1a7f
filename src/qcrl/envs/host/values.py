"""Single values that environments return: numbers, truth values and dictionaries, or a sentence on what was there."""

import copy
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from qcrl.errors import UserError
from qcrl.kinds import Tree


def number(value: object, what: str) -> float:
    """One finite number: Python's, NumPy's, or an array that holds just one."""
    found = value if type(value) in (float, int) else _only(value)
    try:
        result = float(found)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"the {what} is {shown(value)}, but must be one number; mend its {what}") from None
    if not -np.inf < result < np.inf:
        raise UserError(f"the {what} is {result}, but must be finite; mend its {what}")
    return result


def _only(value: object) -> object:
    """The number that is meant; None where there is none, or several."""
    if isinstance(value, numbers.Real):
        return value
    try:
        array = np.asarray(value)
    except Exception:  # whatever an object does that is asked to be an array
        return None
    return array.item() if array.dtype.kind in "biuf" and array.size == 1 else None


def flag(value: object, what: str) -> bool:
    """A truth value, which may be a 0 or 1."""
    if type(value) is bool:
        return value
    found = _only(value)
    if found is None or found not in (0, 1):
        raise UserError(f"{what} is {shown(value)}, but must be true or false")
    return bool(found)


def mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"info is {shown(value)}, but must be a dictionary")
    return value if isinstance(value, dict) else dict(value)


def copied(obs: Tree) -> Tree:
    """An observation that does not change any more when the environment writes into its arrays."""
    return obs.copy() if type(obs) is np.ndarray else copy.deepcopy(obs)


def shown(value: Any) -> str:
    """Anything, in a few characters, whatever its own way of showing itself does."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = f"of the type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
