"""A trained policy that runs in JAX, with the algorithm that it was trained by at hand."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from qcrl.algos import hyperparameters
from qcrl.algos.algorithm import Algorithm
from qcrl.algos.mixture import Mixture, MixtureState
from qcrl.constraints import Constraint
from qcrl.envs.base import Description
from qcrl.errors import Untrusted, UserError
from qcrl.kinds import Json, Tree
from qcrl.nets.network import Inputs, Memory
from qcrl.runs import checkpoints, lane, shapes
from qcrl.runs.forward import Known
from qcrl.runs.policy import Carry, Number, Pick, Policy


class JaxPolicy(Policy):
    """One seed's policy: what acts, on which kind of environment, and with which arrays."""

    backend = "jax"

    def __init__(self, algorithm: Algorithm | Mixture, env: Description, state: Tree, info: Json) -> None:
        super().__init__(env, info, algorithm.needs)
        self.algorithm = algorithm
        self.state = state
        self._jitted = jax.jit(partial(_act, algorithm, env), static_argnames="deterministic")

    @property
    def trained_by(self) -> Algorithm:
        """The algorithm of the policy, or of every part of it."""
        return self.algorithm.algorithm if isinstance(self.algorithm, Mixture) else self.algorithm

    def require_home(self, config: Json, own: lane.Lane) -> None:
        """Raise where it was not trained in this lane of the run that `config` describes."""
        found = {"lane": lane.from_dict(self.info), "environment": self.env, "algorithm": self.trained_by}
        asked = {"lane": own, "environment": Description.from_dict(config["environment"])}
        if "algorithm" in config:
            asked["algorithm"] = hyperparameters.from_json(config["algorithm"])
        lane.require_home(self.info["name"], found, asked)

    @property
    def constraint(self) -> Constraint:
        """The first that it was trained under."""
        return lane.from_dict(self.info).constraint

    def at(self, limit: float | None = None, probability: float | None = None) -> "JaxPolicy":
        """The same policy for episodes with this limit and probability, where it was trained for ranges of them."""
        position = self.position(limit, probability)
        if isinstance(position, tuple):
            return self
        return JaxPolicy(self.algorithm, self.env, self.state._replace(asked=jnp.asarray(position)), self.info)

    def position(self, limit: float | None = None, probability: float | None = None) -> Tree:
        settled = not isinstance(getattr(self.state, "asked", ()), tuple)
        return () if settled else super().position(limit, probability)

    def inputs(self, obs: np.ndarray, carry: Carry, reward: Number | None = 0.0, cost: Number | None = 0.0) -> Inputs:
        """What is known before a step, as networks have it."""
        return _inputs(self.known(obs, carry, reward, cost))

    def _blank(self, rng: np.random.Generator, *batch: int) -> Tree:
        start = self.algorithm.initial_memory(self.env)
        memory = jax.tree.map(lambda x: np.broadcast_to(np.asarray(x), (*batch, *jnp.shape(x))), start)
        if not isinstance(self.algorithm, Mixture):
            return memory
        weights = np.asarray(self.state.weights, float)
        drawn = rng.choice(len(weights), batch or None, p=weights / weights.sum())
        return memory._replace(part=np.asarray(drawn, np.int32))

    def _mix(self, pick: Pick, old: Memory, new: Memory) -> Memory:
        return jax.tree.map(pick, old, new)

    def _act(
        self, known: Known, memory: Memory, rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, Memory]:
        seed = rng.integers(2**32, dtype=np.uint32)
        action, after = self._jitted(self.state, _inputs(known), memory, seed, deterministic)
        return np.asarray(action), jax.tree.map(np.asarray, after)


def load(path: Path) -> JaxPolicy:
    """The policy in this file."""
    try:
        info = checkpoints.read_info(path)
        shapes.check(info, shapes.Policy, path, "train it again")
        trained_by = hyperparameters.from_json(info["algorithm"])
        env = Description.from_dict(info["environment"])
        like = _shapes(trained_by, env, lane.from_dict(info).constraints)
        parts = len(info.get("mixture", []))
        state = checkpoints.read_tree(path, MixtureState((like,) * parts, jnp.zeros(parts)) if parts else like)
    except Untrusted:
        raise
    except Exception as error:  # a file may ask for anything, such as networks of no size, or of any
        raise UserError(f"{path} is not a policy of this version of qcrl ({error}); train it again") from error
    algorithm = Mixture(trained_by) if parts else trained_by
    return JaxPolicy(algorithm, env, jax.tree.map(jnp.asarray, state), info | {"name": path.stem})


def write_mixture(path: Path, parts: Sequence[JaxPolicy], weights: Sequence[float], names: Sequence[Json]) -> None:
    """A file that acts as one of these policies in every episode; `names` says of each where it comes from.

    What else is said about it, such as its lane, is said of the first.
    """
    state = MixtureState(tuple(part.state for part in parts), jnp.asarray(weights, jnp.float32))
    mixture = [{"weight": float(weight), **name} for weight, name in zip(weights, names)]
    info = {key: value for key, value in parts[0].info.items() if key not in ("name", "forward")}
    checkpoints.write_tree(path, state, info | {"mixture": mixture})


def _inputs(known: Known) -> Inputs:
    parts: tuple[Tree, ...] = known._replace(reward=np.float32(known.reward), time=np.float32(known.time))
    return Inputs(*parts)


def _act(
    algorithm: Algorithm | Mixture,
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
