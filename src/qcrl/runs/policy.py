"""A trained policy for use anywhere: NumPy in, NumPy out, loaded from one safetensors file, with JAX or without."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qcrl import ranges
from qcrl.envs.base import Description
from qcrl.envs.host.products import Product, mask_row
from qcrl.errors import UserError, check_name
from qcrl.kinds import Json, Tree
from qcrl.runs.forward import Known

Pick = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Makes one array of an old and a new one."""
Number = Any
"""One number, or an array with one for each row of a batch."""
BACKENDS = ("jax", "numpy")
"""Each has a module of its own beside this one, which need not be importable everywhere."""


class Carry(NamedTuple):
    """What a policy keeps from step to step. For a batch of observations all of it has a leading axis."""

    memory: Tree
    action: np.ndarray
    """Its last action, before that is mapped to what the environment takes."""
    spent: np.ndarray
    """What the episode has cost, up to the last step that was told of."""
    time: Number
    """Steps of the episode so far."""
    asked: Tree = ()
    """Where in their ranges the limit and the probability lie that were asked for, where the policy serves many."""


class Policy:
    """One seed's policy. Call it with an observation and the carry, and with what the last step brought."""

    backend: str

    def __init__(self, env: Description, info: Json, needs: tuple[str, ...]) -> None:
        self.env = env
        self.info = info
        """Where it comes from: algorithm, environment, seed, probability, limit, iteration, env_steps, alive."""
        self.needs = needs
        """What it must be told of the step before: reward, cost, both or nothing."""
        self._entropy = np.random.default_rng()
        self._shape = (env.observation_size,)

    @staticmethod
    def load(path: str | Path, backend: str | None = None) -> Policy:
        """The policy in this file. Nothing in the file is executed.

        backend: jax or numpy; without it jax where that is installed. Both act alike.
        """
        path = Path(path)
        backend = backend or ("jax" if find_spec("jax") else "numpy")
        check_name("backend", backend, BACKENDS)
        if not path.is_file():
            raise UserError(f"there is no policy file {path}; the policies of a run are in its policies folder")
        if backend == "jax" and not find_spec("jax"):
            raise UserError("JAX is not installed; leave out backend='jax': in NumPy the policy acts alike")
        return import_module(f"qcrl.runs.{backend}_policy").load(path)

    def initial(
        self,
        rng: np.random.Generator | int | None = None,
        batch: int | None = None,
        *,
        limit: float | None = None,
        probability: float | None = None,
    ) -> Carry:
        """The carry at the start of an episode, or of a batch of them. A mixture draws its part with `rng`.

        limit, probability: what is asked for, where the policy was trained for ranges of them.
        """
        position = self.position(limit, probability)
        if batch is not None and not isinstance(position, tuple):
            position = np.broadcast_to(position, (batch, len(position)))
        return self.fresh(rng, batch)._replace(asked=position)

    def position(self, limit: float | None = None, probability: float | None = None) -> Tree:
        """Where in its ranges these lie; empty where it has none. What it was not trained for is an error."""
        trained = self.info.get("constraints", [{}])[0]
        if "probability" not in trained:
            return ()
        limits, shares = (tuple(x) if isinstance(x, list) else x for x in (trained["limit"], trained["probability"]))
        ranged = ranges.is_range(limits) or ranges.is_range(shares)
        if not ranged and limit is None and probability is None:
            return ()
        found = (
            ranges.locate("limit", limit, limits),
            ranges.locate("probability", probability, shares, logarithmic=True),
        )
        return np.array(found, np.float32) if ranged else ()

    def fresh(self, rng: np.random.Generator | int | None, batch: int | None) -> Carry:
        """The carry at the start, for a policy that is asked for nothing, or not yet."""
        sizes = () if batch is None else (batch,)
        generator = self._entropy if rng is None else np.random.default_rng(rng)
        zeros = lambda size: np.zeros((*sizes, size), np.float32)
        time = 0.0 if batch is None else np.zeros(batch, np.float32)
        return Carry(self._blank(generator, *sizes), zeros(self.env.action_size), zeros(len(self.env.costs)), time)

    def restart(self, carry: Carry, ended: np.ndarray, rng: np.random.Generator | int | None = None) -> Carry:
        """The carry of a batch in which these episodes have ended and the next ones begin."""
        ended, blank = np.asarray(ended, bool), self.fresh(rng, len(ended))

        def pick(old: np.ndarray, new: np.ndarray) -> np.ndarray:
            return np.where(ended.reshape(-1, *(1,) * (np.ndim(old) - 1)), new, old)

        begun = Carry(self._mix(pick, carry.memory, blank.memory), *map(pick, carry[1:4], blank[1:4]))
        return begun._replace(asked=carry.asked)

    def __call__(
        self,
        obs: np.ndarray,
        carry: Carry,
        reward: Number | None = None,
        cost: Number | None = None,
        rng: np.random.Generator | int | None = None,
        deterministic: bool = False,
        mask: Any = None,
    ) -> tuple[np.ndarray, Carry]:
        """Action and next carry, of one observation or of a batch.

        `reward` and `cost` are those of the step before. A policy that looks at them must be told; `needs` says so. At
        the start of an episode there are none. Several costs are given by name, or in the environment's order.
        Actions are drawn with `rng`, a generator or a seed; without one they differ from call to call.
        `mask` is the environment's action mask, where it has one: as the environment gives it, or in one row.
        """
        if mask is not None or self.env.masks:
            obs = self._with_mask(obs, self._row(mask, carry.spent.shape[:-1]))
        known = self.known(obs, carry, reward, cost)
        generator = self._entropy if rng is None else np.random.default_rng(rng)
        action, memory = self._act(known, carry.memory, generator, deterministic)
        after = Carry(memory, action, known.spent, carry.time + 1, carry.asked)
        return action if self.env.actions is None else self.env.actions.to_env(action), after

    def known(self, obs: np.ndarray, carry: Carry, reward: Number | None = None, cost: Number | None = None) -> Known:
        """What is known before a step, checked."""
        try:
            obs = np.asarray(obs, np.float32)
        except (ValueError, TypeError):
            raise UserError(f"the observation is {obs!r}, but must be an array of numbers") from None
        batch = carry.spent.shape[:-1]
        if self.env.images and obs.size == math.prod(batch + self._shape):
            obs = obs.reshape(batch + self._shape)  # images may be given as they are
        if obs.shape != batch + self._shape:
            raise UserError(
                f"the observation has shape {obs.shape}, but this policy was trained on {self.env.id} with shape "
                f"{self._shape}; pass one observation, or a batch of them and the carry of initial(batch=...)"
            )
        if not _finite(obs):
            raise UserError("the observation is not finite; the policy cannot act on it, so decide what to do instead")
        begun = bool((carry.time > 0).any()) if batch else carry.time > 0
        if begun:
            for name in self.needs:
                if (reward if name == "reward" else cost) is None:
                    raise UserError(
                        f"the {name} of the step before was not given, but this policy looks at it; "
                        f"call it with {name}=..."
                    )
        told = begun or batch
        try:
            last_reward, last_cost = self._told(carry, reward, cost) if told else (0.0, np.zeros_like(carry.spent))
        except UserError:
            raise
        except (ValueError, TypeError):
            each = f"{len(carry.spent)} of each" if batch else "one of each"
            raise UserError(f"reward is {reward!r} and cost {cost!r}, but must be numbers, {each}") from None
        return Known(obs, carry.action, last_reward, last_cost, carry.spent + last_cost, carry.time, carry.asked)

    def _told(self, carry: Carry, reward: Number | None, cost: Number | None) -> tuple[Number, np.ndarray]:
        """Reward and cost of the step before, checked; 0 where they were not given, or there was none."""
        batch = carry.spent.shape[:-1]
        if cost is not None and (len(self.env.costs) > 1 or isinstance(cost, Mapping)):
            cost = self._costs(cost, len(batch))
        last_reward: Number = 0.0 if reward is None else np.asarray(reward, np.float32) if batch else float(reward)
        last_cost = np.zeros(carry.spent.shape, np.float32)
        if cost is not None:
            last_cost[:] = np.asarray(cost)[..., None] if batch and np.ndim(cost) == len(batch) else cost
        if batch:
            first = carry.time == 0
            last_reward = np.where(first, np.float32(0.0), last_reward)
            last_cost[first] = 0.0
        if not (_finite(last_reward) and _finite(last_cost)):
            raise UserError("the reward or the cost of the step before is not finite; give the numbers of that step")
        if last_cost.min() < 0:
            raise UserError(f"the cost of the step before is {cost}, but costs are never negative; give what it cost")
        return last_reward, last_cost

    def _costs(self, cost: Number, axes: int) -> np.ndarray:
        """Costs by name, or in a row, in the order of the environment."""
        names = self.env.costs
        if isinstance(cost, Mapping) and set(names) <= set(cost):
            return np.stack([np.asarray(cost[name], np.float32) for name in names], axis=-1)
        if isinstance(cost, Mapping) or np.ndim(cost) != axes + 1 or np.shape(cost)[-1] != len(names):
            raise UserError(f"cost is {cost!r}, but {self.env.id} has {', '.join(names)}; give all of them by name")
        return np.asarray(cost, np.float32)

    def _row(self, mask: Any, batch: tuple[int, ...]) -> np.ndarray | None:
        """A mask in parts as one row."""
        nested = isinstance(self.env.actions, Product) and self.env.actions.nested
        if not isinstance(mask, dict | tuple) or (batch and not nested):
            return mask
        try:
            return mask_row(mask, self.env.actions.parts if isinstance(self.env.actions, Product) else {}, batch)
        except UserError:
            raise
        except (ValueError, TypeError) as error:
            raise UserError(f"the action mask is {mask!r}, but must be as the environment gives it ({error})") from None

    def _with_mask(self, obs: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """The observation with the action mask behind it, as it was trained."""
        if mask is None or not self.env.masks or np.shape(mask)[-1:] != (self.env.masks,):
            given = "none" if mask is None else f"one of shape {np.shape(mask)}"
            asked = f"one with {self.env.masks} entries" if self.env.masks else "none"
            raise UserError(f"the action mask is {given}, but this policy needs {asked}")
        if self.env.actions is not None and not self.env.actions.allows(np.asarray(mask)):
            raise UserError("the action mask allows nothing, but must allow an option of every choice")
        return np.concatenate([np.asarray(obs, np.float32), np.asarray(mask, np.float32)], axis=-1)

    def _blank(self, rng: np.random.Generator, *batch: int) -> Tree:
        """What is remembered before an episode."""
        raise NotImplementedError

    def _mix(self, pick: Pick, old: Tree, new: Tree) -> Tree:
        """Two memories, made one array by array."""
        raise NotImplementedError

    def _act(
        self, known: Known, memory: Tree, rng: np.random.Generator, deterministic: bool
    ) -> tuple[np.ndarray, Tree]:
        raise NotImplementedError

    def __repr__(self) -> str:
        about = self.info
        who = about.get("algorithm", {}).get("label", "Policy")
        lane = "".join(f", {name} {about[name]:g}" for name in ("seed", "limit", "probability") if name in about)
        steps = f", trained for {about['env_steps']:,} steps" if "env_steps" in about else ""
        return f"<{who} policy for {self.env.id}{lane}{steps}, backend {self.backend}>"


def _finite(x: Number) -> bool:
    """Whether all numbers are finite; of a single row that is mostly told by its length, which is quicker."""
    if isinstance(x, float):
        return math.isfinite(x)
    if x.ndim == 1 and (math.isfinite(x.item()) if x.size == 1 else math.isfinite(x.dot(x))):
        return True
    return bool(np.isfinite(x).all())
