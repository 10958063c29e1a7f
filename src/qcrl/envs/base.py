"""The environment seam: batch-free pure functions over pytrees. Callers vmap; auto-reset lives in sampling."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from qcrl.envs.host.actions import Actions
from qcrl.envs.host.products import Product
from qcrl.envs.host.spaces import read_actions
from qcrl.kinds import Json, Tree
from qcrl.nets.images import Image

if TYPE_CHECKING:  # a policy can be run where there is no JAX
    import jax
    from jaxtyping import Array, Bool, Float

    Scalar = Float[Array, ""]
    Flag = Bool[Array, ""]

ONE_COST = ("cost",)
"""The names of an environment's costs where it has one, the usual case."""


class Step(NamedTuple):
    """What one step of an environment returns."""

    obs: Float[Array, " obs"]
    reward: Scalar
    cost: Float[Array, "*cost"]
    """One number, or one for each of the environment's `costs`."""
    terminated: Flag
    truncated: Flag


class Described(Protocol):
    """What everybody may ask of an environment, wherever it runs."""

    @property
    def id(self) -> str: ...

    @property
    def observation_size(self) -> int: ...

    @property
    def action_size(self) -> int: ...

    @property
    def discrete(self) -> bool:
        """Whether actions are choices, one-hot vectors of `action_size`, and not numbers."""
        ...

    @property
    def costs(self) -> tuple[str, ...]:
        """Names of the costs that every step has."""
        ...

    @property
    def horizon(self) -> int:
        """Longest possible episode, in steps."""
        ...

    @property
    def timed(self) -> bool:
        """Whether that is known, and not only assumed."""
        ...

    @property
    def fixed_length(self) -> bool:
        """True where every episode lasts exactly `horizon` steps: resets can then be drawn before a rollout."""
        ...


HOST_PRESET = "host"
"""The preset of algorithms that is made for environments which run in Python."""


def suited_preset(env: Described | None) -> str | None:
    """The preset of algorithms that is made for environments like this one; None where there is no such."""
    return getattr(env, "suited_preset", None)


def choices_of(env: Described) -> tuple[int, ...]:
    """How many options each choice of an action with several parts has; empty where it is one choice, or numbers."""
    return getattr(getattr(env, "actions", None), "choices", ())


def numbers_of(env: Described) -> int:
    """How many numbers an action has; they come before the choices."""
    return 0 if env.discrete else env.action_size - sum(choices_of(env))


def mask_of(env: Described, obs: Array) -> Array | None:
    """Which options may be chosen, as observations say it; None where all may."""
    count, size = getattr(env, "masks", 0), env.observation_size
    return obs[..., size - count : size] if count else None


def images_of(env: Described) -> tuple[Image, ...]:
    """The images among its observations; most have none."""
    return getattr(env, "images", ())


class Environment(Described, Protocol):
    """A functional environment. Implementations are immutable, hashable, and pure in `reset` and `step`."""

    @property
    def description(self) -> str:
        """In one sentence."""
        ...

    def reset(self, key: jax.Array) -> tuple[Tree, Float[Array, " obs"]]: ...

    def step(self, state: Tree, action: Float[Array, " action"]) -> tuple[Tree, Step]: ...


@dataclass(frozen=True)
class Description:
    """What a policy knows of its environment: enough to rebuild its network without the environment itself."""

    id: str
    observation_size: int
    action_size: int
    horizon: int
    fixed_length: bool
    discrete: bool = False
    timed: bool = True
    costs: tuple[str, ...] = ONE_COST
    actions: Actions | Product | None = None
    """How actions become the environment's; None where it takes those of the policy."""
    masks: int = 0
    """How many options may be masked; that many observed numbers, the last ones, say which."""
    cost: str | dict[str, str] | None = field(default=None, hash=False)
    """Where the cost of an environment that runs in Python comes from; by name where there are several."""
    images: tuple[Image, ...] = ()
    """Those among the observations."""

    @classmethod
    def of(cls, env: Described) -> Description:
        return cls(
            env.id,
            env.observation_size,
            env.action_size,
            env.horizon,
            env.fixed_length,
            getattr(env, "discrete", False),
            getattr(env, "timed", True),
            tuple(getattr(env, "costs", ONE_COST)),
            getattr(env, "actions", None),
            getattr(env, "masks", 0),
            getattr(env, "cost_source", None),
            images_of(env),
        )

    @classmethod
    def from_dict(cls, description: Json) -> Description:
        actions = description.get("actions")
        read = {
            "costs": tuple(description.get("costs", ONE_COST)),
            "images": tuple(map(Image.from_dict, description.get("images", ()))),
        }
        return cls(**description | read | {"actions": None if actions is None else read_actions(actions)})

    def as_dict(self) -> Json:
        """As JSON would give it back; what does not apply is left out."""
        filled = {name: value for name, value in vars(self).items() if value is not None}
        if not self.masks:
            del filled["masks"]
        filled["costs"] = list(self.costs)
        if filled.pop("images"):
            filled["images"] = [image.as_dict() for image in self.images]
        return filled if self.actions is None else filled | {"actions": self.actions.as_dict()}
