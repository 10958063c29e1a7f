"""A trained policy for use anywhere: NumPy in, NumPy out, loaded from one safetensors file."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from qcrl import checkpoints, hyperparameters
from qcrl.envs.base import Environment
from qcrl.envs.host import Host
from qcrl.envs.spaces import Actions
from qcrl.errors import UserError


@dataclass(frozen=True)
class Interface:
    """What a policy knows of its environment. Enough to rebuild its network without the environment itself."""

    id: str
    observation_size: int
    action_size: int
    horizon: int
    fixed_length: bool
    actions: Actions | None = None
    """How actions become the environment's; None where it takes those of the policy."""
    cost: str | None = None
    """Where the cost of a host environment comes from."""

    description = "the interface of an environment"

    @classmethod
    def of(cls, env: Environment | Host) -> "Interface":
        own = (getattr(env, "actions", None), env.cost if isinstance(env, Host) else None)
        return cls(env.id, env.observation_size, env.action_size, env.horizon, env.fixed_length, *own)

    @classmethod
    def from_dict(cls, description: dict[str, Any]) -> "Interface":
        actions = description.get("actions")
        return cls(**description | {"actions": None if actions is None else Actions.from_dict(actions)})

    def as_dict(self) -> dict[str, Any]:
        """As JSON would give it back; what does not apply is left out."""
        filled = {name: value for name, value in vars(self).items() if value is not None}
        return filled if self.actions is None else filled | {"actions": self.actions.as_dict()}

    @property
    def discrete(self) -> bool:
        return self.actions is not None and self.actions.discrete

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros(()), jnp.zeros(self.observation_size)

    def step(self, state: Any, action: Any) -> Any:
        raise NotImplementedError("an interface cannot be stepped")


class Carry(NamedTuple):
    """What a policy remembers from step to step."""

    memory: Any
    action: Float[np.ndarray, " action"]
    """Its last action, before that is mapped to what the environment takes."""


class Policy:
    """One seed's policy. Call it with an observation and the carry, and with what the last step brought."""

    def __init__(self, algorithm: Any, interface: Interface, state: Any, info: dict[str, Any]) -> None:
        self.algorithm = algorithm
        self.interface = interface
        self.state = state
        self.info = info
        """Where it comes from: algorithm, environment, seed, probability, limit, iteration, env_steps, alive."""
        self._entropy = np.random.default_rng()
        self._act = jax.jit(partial(_act, algorithm, interface), static_argnames="deterministic")

    @classmethod
    def load(cls, path: str | Path) -> "Policy":
        """The policy in this file. Nothing in the file is executed."""
        path = Path(path)
        if not path.is_file():
            raise UserError(f"there is no policy file {path}; the policies of a run are in its policies folder")
        try:
            info = checkpoints.read_info(path)
            algorithm = hyperparameters.from_json(info["algorithm"])
            interface = Interface.from_dict(info["environment"])
            state = checkpoints.read_tree(path, like=_shapes(algorithm, interface))
        except (checkpoints.Torn, KeyError, TypeError) as error:
            raise UserError(f"{path} is not a policy of this version of qcrl ({error}); train it again") from error
        return cls(algorithm, interface, jax.tree.map(jnp.asarray, state), info)

    def initial(self) -> Carry:
        """The carry at the start of an episode."""
        memory = jax.tree.map(np.asarray, self.algorithm.initial_carry(self.interface))
        return Carry(memory, np.zeros(self.interface.action_size, np.float32))

    def __call__(
        self,
        obs: Float[np.ndarray, " obs"],
        carry: Carry,
        reward: float = 0.0,
        cost: float = 0.0,
        rng: np.random.Generator | int | None = None,
        deterministic: bool = False,
    ) -> tuple[Float[np.ndarray, " action"], Carry]:
        """Action and next carry. `reward` and `cost` are those of the step before, 0 at the start of an episode.

        Actions are drawn with `rng`, a generator or a seed; without one they differ from call to call.
        """
        obs = np.asarray(obs, np.float32)
        if obs.shape != (self.interface.observation_size,):
            raise UserError(
                f"the observation has shape {obs.shape}, but this policy was trained on "
                f"{self.interface.id} with shape ({self.interface.observation_size},); pass one observation at a time"
            )
        seed = np.random.default_rng(self._entropy if rng is None else rng).integers(2**32, dtype=np.uint32)
        action, memory = self._act(
            self.state,
            carry.memory,
            obs,
            carry.action,
            np.float32(reward),
            np.float32(cost),
            seed,
            deterministic,
        )
        action = np.asarray(action)
        carry = Carry(jax.tree.map(np.asarray, memory), action)
        actions = self.interface.actions
        return action if actions is None else actions.to_env(action), carry


def _act(
    algorithm: Any,
    interface: Interface,
    state: Any,
    memory: Any,
    obs: Any,
    action: Any,
    reward: Any,
    cost: Any,
    seed: Any,
    deterministic: bool,
) -> Any:
    key = jax.random.key(seed)
    return algorithm.act(interface, state, memory, obs, action, reward, cost, key, deterministic)


def _shapes(algorithm: Any, interface: Interface) -> Any:
    """Shapes and types of a policy's arrays, without computing any."""
    one = jax.ShapeDtypeStruct((), jnp.float32)
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    return jax.eval_shape(
        lambda seed, limit, probability: algorithm.policy_state(
            algorithm.init(interface, jax.random.key(seed), limit, probability)
        ),
        seed,
        one,
        one,
    )
