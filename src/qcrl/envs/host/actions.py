"""How a policy's action becomes an environment's, where it has one part."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from qcrl.kinds import Json, Settings

MINUS_ONE, ONE = np.float32(-1.0), np.float32(1.0)  # not Python's: NumPy would convert them at every call


@dataclass(frozen=True)
class Actions:
    """How a policy's action becomes the environment's: the choice of a one-hot vector, or numbers in [-1, 1] mapped."""

    discrete: bool
    shape: tuple[int, ...] = ()
    dtype: str = "int64"
    start: int = 0
    """The first of discrete choices."""
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    """Bounds of each number; None where there is none."""

    def to_env(self, actions: Float[np.ndarray, "*batch action"]) -> np.ndarray:
        """Of discrete actions the chosen number.

        A number with two bounds is clipped to [-1, 1], which becomes [low, high]; else it is clipped to what there is.
        """
        if self.discrete:
            return self.start + np.argmax(actions, axis=-1)
        low, high, free, middle, half, dtype = self.map
        mapped = np.maximum(actions, MINUS_ONE)
        mapped = half * np.minimum(mapped, ONE, out=mapped)
        mapped += middle
        if free is not None:
            mapped = np.where(free, actions, mapped)
        np.minimum(np.maximum(mapped, low, out=mapped), high, out=mapped)
        chosen = mapped.astype(dtype, copy=False)
        return chosen if len(self.shape) == 1 else chosen.reshape(*actions.shape[:-1], *self.shape)

    def allows(self, mask: Float[np.ndarray, "*batch option"]) -> bool:
        """Whether action masks leave a choice."""
        return bool(np.any(mask, axis=-1).all())

    @cached_property
    def map(self) -> tuple[Any, ...]:
        """Bounds, which numbers lack one if any do, middle and half width of the others, and the type of actions."""
        low, high = _limits(self.low, -np.inf), _limits(self.high, np.inf)
        both = np.isfinite(low) & np.isfinite(high)
        bottom, top = np.where(both, low, 0.0), np.where(both, high, 0.0)
        dtype = np.dtype(self.dtype)
        low, high, middle, half = (x.astype(dtype) for x in (low, high, (bottom + top) / 2, (top - bottom) / 2))
        return low, high, None if both.all() else ~both, middle, half, dtype

    def as_dict(self) -> Json:
        """As JSON would give it back."""
        return {name: list(x) if isinstance(x, tuple) else x for name, x in asdict(self).items()}

    @classmethod
    def from_dict(cls, description: Json) -> "Actions":
        fields: Settings = {name: tuple(x) if isinstance(x, list) else x for name, x in description.items()}
        return cls(**fields)

    @property
    def numbers(self) -> int:
        return len(self.low)

    @property
    def choices(self) -> tuple[int, ...]:
        """Those of an action with several parts, which this is not."""
        return ()

    def __str__(self) -> str:
        if self.discrete:
            return "discrete actions, drawn from a categorical distribution"
        if None in (*self.low, *self.high):
            return "actions as the policy draws them, clipped where the environment has a bound"
        return "actions clipped to [-1, 1] and mapped to the environment's bounds"


def _limits(bounds: Sequence[float | None], unbounded: float) -> np.ndarray:
    return np.array([unbounded if bound is None else bound for bound in bounds])
