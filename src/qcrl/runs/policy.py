"""A trained policy for use anywhere: NumPy in, NumPy out, loaded from one safetensors file."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from qcrl.algos import hyperparameters
from qcrl.algos.algorithm import Algorithm
from qcrl.constraints import Constraint
from qcrl.envs.base import Description
from qcrl.errors import UserError
from qcrl.kinds import Json, Tree
from qcrl.nets.network import Inputs, Memory
from qcrl.runs import checkpoints, lane


class Carry(NamedTuple):
    """What a policy keeps from step to step."""

    memory: Memory
    action: Float[np.ndarray, " action"]
    """Its last action, before that is mapped to what the environment takes."""
    spent: Float[np.ndarray, " cost"]
    """What the episode has cost, up to the last step that was told of."""
    time: float
    """Steps of the episode so far."""


class Policy:
    """One seed's policy. Call it with an observation and the carry, and with what the last step brought."""

    def __init__(self, algorithm: Algorithm, env: Description, state: Tree, info: Json) -> None:
        self.algorithm = algorithm
        self.env = env
        self.state = state
        self.info = info
        """Where it comes from: algorithm, environment, seed, probability, limit, iteration, env_steps, alive."""
        self._entropy = np.random.default_rng()
        self._act = jax.jit(partial(_act, algorithm, env), static_argnames="deterministic")

    @classmethod
    def load(cls, path: str | Path) -> "Policy":
        """The policy in this file. Nothing in the file is executed."""
        path = Path(path)
        if not path.is_file():
            raise UserError(f"there is no policy file {path}; the policies of a run are in its policies folder")
        try:
            info = checkpoints.read_info(path)
            algorithm = hyperparameters.from_json(info["algorithm"])
            env = Description.from_dict(info["environment"])
            state = checkpoints.read_tree(path, like=_shapes(algorithm, env, lane.from_dict(info).constraints))
        except (checkpoints.Torn, KeyError, TypeError, UserError) as error:
            raise UserError(f"{path} is not a policy of this version of qcrl ({error}); train it again") from error
        return cls(algorithm, env, jax.tree.map(jnp.asarray, state), info | {"name": path.stem})

    def require_home(self, config: Json, own: lane.Lane) -> None:
        """Raise where it was not trained in this lane of the run that `config` describes."""
        found = {"lane": lane.from_dict(self.info), "environment": self.env, "algorithm": self.algorithm}
        asked = {"lane": own, "environment": Description.from_dict(config["environment"])}
        if "algorithm" in config:
            asked["algorithm"] = hyperparameters.from_json(config["algorithm"])
        for name, value in asked.items():
            if found[name] != value:
                raise UserError(
                    f"the policy file {self.info['name']} was copied in from elsewhere: its {name} is not that of this "
                    "run; put back the run's own, or train it again"
                )

    def initial(self) -> Carry:
        """The carry at the start of an episode."""
        memory = jax.tree.map(np.asarray, self.algorithm.initial_memory(self.env))
        return Carry(memory, np.zeros(self.env.action_size, np.float32), np.zeros(len(self.env.costs), np.float32), 0.0)

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
        if obs.shape != (self.env.observation_size,):
            raise UserError(
                f"the observation has shape {obs.shape}, but this policy was trained on "
                f"{self.env.id} with shape ({self.env.observation_size},); pass one observation at a time"
            )
        seed = np.random.default_rng(self._entropy if rng is None else rng).integers(2**32, dtype=np.uint32)
        inputs = self.inputs(obs, carry, reward, cost)
        drawn, memory = self._act(self.state, inputs, carry.memory, seed, deterministic)
        action = np.asarray(drawn)
        after = Carry(jax.tree.map(np.asarray, memory), action, np.asarray(inputs.spent), carry.time + 1)
        return action if self.env.actions is None else self.env.actions.to_env(action), after

    def inputs(self, obs: np.ndarray, carry: Carry, reward: float = 0.0, cost: float = 0.0) -> Inputs:
        """What is known before a step."""
        last = np.broadcast_to(np.asarray(cost, np.float32), carry.spent.shape)
        time = np.float32(carry.time)
        return Inputs(obs, carry.action, np.float32(reward), last, carry.spent + last, time)  # type: ignore[arg-type]


def _act(
    algorithm: Algorithm,
    env: Description,
    state: Tree,
    inputs: Inputs,
    memory: Memory,
    seed: Array,
    deterministic: bool,
) -> tuple[Array, Memory]:
    return algorithm.act(env, state, inputs, memory, jax.random.key(seed), deterministic)


def _shapes(algorithm: Algorithm, env: Description, constraints: tuple[Constraint, ...]) -> Tree:
    """Shapes and types of a policy's arrays, without computing any."""
    return jax.eval_shape(
        lambda seed: algorithm.policy_state(env, algorithm.init(env, jax.random.key(seed), constraints)),
        jax.ShapeDtypeStruct((), jnp.uint32),
    )
