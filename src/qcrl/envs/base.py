"""The environment seam: batch-free pure functions over pytrees. Callers vmap; the rollout resets."""

from typing import Any, NamedTuple, Protocol

import jax
from jaxtyping import Array, Bool, Float


class Step(NamedTuple):
    """What one step of an environment returns."""

    obs: Float[Array, " obs"]
    reward: Float[Array, ""]
    cost: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


class Environment(Protocol):
    """A functional environment. Implementations are immutable, hashable, and pure in `reset` and `step`."""

    @property
    def id(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def observation_size(self) -> int: ...

    @property
    def action_size(self) -> int: ...

    @property
    def horizon(self) -> int:
        """Longest possible episode, in steps."""
        ...

    @property
    def fixed_length(self) -> bool:
        """True where every episode lasts exactly `horizon` steps: resets can then be drawn before a rollout."""
        ...

    def reset(self, key: jax.Array) -> tuple[Any, Float[Array, " obs"]]: ...

    def step(self, state: Any, action: Float[Array, " action"]) -> tuple[Any, Step]: ...
