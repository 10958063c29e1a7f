"""Numbers that may be ranges, (lowest, highest): what lies where in one, on a plain or on a logarithmic scale."""

import math

from qcrl.errors import UserError
from qcrl.kinds import Number


def is_range(value: Number) -> bool:
    return isinstance(value, tuple)


def end(value: Number, which: int) -> Number:
    """One of the ends of a range, or the number."""
    return value[which] if is_range(value) else value


def check(name: str, ends: Number) -> tuple[float, float]:
    """The range that a user gave, which must hold something."""
    numbers = [end for end in ends if isinstance(end, int | float) and not isinstance(end, bool) and math.isfinite(end)]
    if len(ends) != 2 or len(numbers) != 2 or not ends[0] < ends[1]:
        raise UserError(f"{name} is {ends!r}, an empty range; give its lowest and then its highest number")
    return ends[0], ends[1]


def at(value: Number, position: Number, logarithmic: bool = False) -> Number:
    """The number at this position, 0 to 1, of a range; a number stays what it is."""
    if not is_range(value):
        return value
    low, high = value
    return low * (high / low) ** position if logarithmic else low + position * (high - low)


def locate(name: str, asked: float | None, value: Number, logarithmic: bool = False) -> float:
    """The position of the number that a user asks for; any where there is no range."""
    low, high = value if is_range(value) else (value, value)
    if asked is None:
        if low < high:
            raise UserError(f"{name} may be anything from {low:g} to {high:g} here; say which one")
        return 0.5
    if isinstance(asked, bool) or not hasattr(asked, "__float__") or not low <= asked <= high:
        raise UserError(f"{name} is {asked!r}, but what was trained for is {text(value)}; ask for that")
    if low == high:
        return 0.5
    return math.log(asked / low) / math.log(high / low) if logarithmic else (asked - low) / (high - low)


def text(value: Number) -> str:
    """A number, or both ends of a range."""
    return " to ".join(f"{end:g}" for end in (value if is_range(value) else (value,)))
