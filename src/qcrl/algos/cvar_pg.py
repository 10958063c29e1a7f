"""Risk-constrained policy gradient (Chow et al. 2017): whole episodes, and three variables that follow each other's pace.

With X an episode's cost, R its return and p the level, CVaR(X) is the minimum over nu of nu + E[(X - nu)+] / p. So

    minimise over nu and the policy, maximise over the multiplier:  -E[R] + multiplier (nu + E[(X - nu)+] / p - limit)

is stepped along by its gradients: nu fastest, then the policy, and the multiplier slowest. The gradient in nu is taken
without its factor, the multiplier: nu finds the quantile as well while the constraint does not bind.
"""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from qcrl import rollout
from qcrl.algos import distributions
from qcrl.algos.multiplier import Window
from qcrl.algos.state import Metrics, PolicyState
from qcrl.algos.summary import all_finite, choose, summary
from qcrl.envs.base import Environment
from qcrl.errors import UserError
from qcrl.networks import Inputs, Memory, Network, Normaliser, Params
from qcrl.rollout import Actors, Episodes, Trajectory


class CVaRState(NamedTuple):
    """All that changes during training, as arrays."""

    params: Params
    normaliser: Normaliser
    optimiser: Any
    nu: Float[Array, ""]
    """Follows the (1 - p) quantile of episode costs."""
    multiplier: Float[Array, ""]
    actors: Actors
    window: Window
    key: Array
    iteration: Int[Array, ""]
    env_steps: Int[Array, ""]
    limit: Float[Array, ""]
    probability: Float[Array, ""]
    learning_rate: Float[Array, ""]
    alive: Bool[Array, ""]
    """False once a parameter was not finite; everything else then stays as it was before."""


@dataclass(frozen=True)
class CVaRPG:
    """Maximise return subject to CVaR(episode cost) <= limit at the level `probability`, by gradients of whole episodes."""

    num_envs: int = 12
    """Environments stepped side by side."""
    steps_per_env: int = 1000
    """Steps taken in each environment per iteration; whole episodes where they have a fixed length."""
    learning_rate: float = 3e-3
    """Adam's learning rate for the policy."""
    nu_learning_rate: float = 0.5
    """Step size of nu, the running quantile of episode costs."""
    multiplier_learning_rate: float = 0.01
    """Step size of the multiplier."""
    error_clip: float = math.inf
    """Bound on the distance of CVaR and limit in a step of the multiplier, in costs."""
    max_multiplier: float = 100.0
    """The multiplier is kept below this."""
    discount: float = 1.0
    """Discount factor of rewards in the policy's gradient; 1 is the episode's return. Costs are never discounted."""
    initial_log_std: float = 0.0
    """Log standard deviation of actions before the first iteration."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Sizes of the policy's tanh layers."""
    observation_clip: float = 10.0
    """Bound on observations, which are normalised by their running mean and variance."""
    window: int = 100
    """Most recent episodes that metrics are taken over."""

    def __post_init__(self) -> None:
        for name, least in (("num_envs", 2), ("steps_per_env", 1), ("window", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}, but must be at least {least}")
        for name in ("learning_rate", "nu_learning_rate", "error_clip", "max_multiplier", "observation_clip"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} is {getattr(self, name)}, but must be greater than 0")
        if not 0 <= self.discount <= 1:
            raise UserError(f"discount is {self.discount}, but must lie between 0 and 1")
        if not self.multiplier_learning_rate >= 0:
            raise UserError(f"multiplier_learning_rate is {self.multiplier_learning_rate}, but must be at least 0")

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.steps_per_env

    @property
    def network(self) -> Network:
        return Network(self.hidden_sizes, 0, False, "lstm", self.observation_clip)

    def init(self, env: Environment, key: Array, limit: Any, probability: Any) -> CVaRState:
        """The state before the first iteration."""
        if env.fixed_length and self.steps_per_env % env.horizon:
            raise UserError(
                f"steps_per_env is {self.steps_per_env}, but cvar_pg learns from whole episodes: give a multiple of the "
                f"{env.horizon} steps of an episode of {env.id}"
            )
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.key_data(key)
        key, network_key, env_key = jax.random.split(key, 3)
        size = env.action_size
        params, normaliser = self.network.init(network_key, env.observation_size, size, size)
        if not getattr(env, "discrete", False):
            params |= {"log_std": jnp.full(size, self.initial_log_std, jnp.float32)}
        limit = jnp.asarray(limit, jnp.float32)
        return CVaRState(
            params,
            normaliser,
            OPTIMISER.init(params),
            nu=limit,
            multiplier=jnp.zeros(()),
            actors=rollout.start(env, env_key, self.num_envs, self.network.initial_memory()),
            window=Window.init(self.window),
            key=key,
            iteration=jnp.zeros((), jnp.int32),
            env_steps=jnp.zeros((), jnp.int32),
            limit=limit,
            probability=jnp.asarray(probability, jnp.float32),
            learning_rate=jnp.full((), self.learning_rate, jnp.float32),
            alive=jnp.ones((), bool),
        )

    def iterate(self, env: Environment, state: CVaRState) -> tuple[CVaRState, Metrics]:
        """One iteration. A state that is not alive, or would not be finite afterwards, stays as it was."""
        with self.precision():
            key, rollout_key = jax.random.split(state.key)
            actors, trajectory, episodes = rollout.rollout(
                env,
                lambda *step: self.sample(*self.actor(env, state), *step),
                state.actors,
                rollout_key,
                self.steps_per_env,
                env.horizon if env.fixed_length else self.steps_per_env,
                state.env_steps // self.num_envs,
            )
            return self.learn(state, actors, trajectory, episodes, key)

    def actor(self, env: Environment, state: CVaRState) -> tuple[Params, Normaliser]:
        """What `sample` needs of the state."""
        return state.params, state.normaliser

    def precision(self) -> AbstractContextManager[Any]:
        """While entered, products run in the type that a small policy can do with."""
        return jax.default_matmul_precision("tensorfloat32")

    def learn(
        self, before: CVaRState, actors: Actors, trajectory: Trajectory, episodes: Episodes, key: Array
    ) -> tuple[CVaRState, Metrics]:
        """One step of the policy, nu and the multiplier, all from the values of `before`."""
        level, any_finished = before.probability, jnp.any(episodes.finished)
        share = jnp.mean(episodes.cost > before.nu, where=episodes.finished)
        excess = jnp.mean(jnp.maximum(episodes.cost - before.nu, 0.0), where=episodes.finished)
        cvar = before.nu + excess / level
        error = jnp.clip(cvar - before.limit, -self.error_clip, self.error_clip)
        nu = before.nu - self.nu_learning_rate * (1 - share / level)
        multiplier = jnp.clip(before.multiplier + self.multiplier_learning_rate * error, 0.0, self.max_multiplier)

        advantage, whole = self.advantage(before, trajectory)
        gradient, scalars = jax.grad(self._loss, has_aux=True)(
            before.params, before.normaliser, trajectory, advantage, whole
        )
        update, optimiser = OPTIMISER.update(gradient, before.optimiser)
        params = jax.tree.map(lambda p, u: p - before.learning_rate * u, before.params, update)
        learned = choose(
            any_finished,
            (params, optimiser, nu, multiplier),
            (before.params, before.optimiser, before.nu, before.multiplier),
        )
        after = before._replace(
            **dict(zip(("params", "optimiser", "nu", "multiplier"), learned)),
            normaliser=before.normaliser.update(trajectory.inputs.obs),
            actors=actors,
            window=before.window.add(episodes),
            key=key,
            iteration=before.iteration + 1,
            env_steps=before.env_steps + self.steps_per_iteration,
        )
        alive = before.alive & all_finite((learned, after.normaliser))
        after = choose(alive, after, before)._replace(alive=alive)
        episodes = episodes._replace(finished=episodes.finished & alive)
        return after, Metrics(summary(after, self.window) | scalars | {"nu": after.nu, "cvar": cvar}, episodes)

    def advantage(
        self, state: CVaRState, trajectory: Trajectory
    ) -> tuple[Float[Array, "time env"], Bool[Array, "time env"]]:
        """R - multiplier (X - nu)+ / p of every step's episode, and which steps belong to one that is whole in the batch.

        Of the rewards only those to come are counted, and the mean of the other environments at the same time is taken
        off: neither changes the gradient's mean.
        """

        def backwards(carry: tuple, x: tuple) -> tuple[tuple, tuple]:
            to_go, total, finished = carry
            reward, cost, ended = x
            to_go = reward + self.discount * jnp.where(ended, 0.0, to_go)
            total = cost + jnp.where(ended, 0.0, total)
            finished = finished | ended
            return (to_go, total, finished), (to_go, total, finished)

        zeros = jnp.zeros_like(trajectory.reward[0])
        steps = trajectory.reward, trajectory.cost, trajectory.ended
        start = zeros, zeros, zeros > 0
        _, (to_go, later_cost, finished) = jax.lax.scan(backwards, start, steps, reverse=True)
        episode = jnp.cumsum(trajectory.first, axis=0)
        spent = _spent(trajectory.cost, trajectory.first)
        whole = finished & (episode > 0)
        excess = jnp.maximum(spent + later_cost - state.nu, 0.0) / state.probability
        gain = to_go - state.multiplier * excess
        others = jnp.sum(gain, axis=1, keepdims=True, where=whole) - jnp.where(whole, gain, 0.0)
        count = jnp.sum(whole, axis=1, keepdims=True) - whole
        return gain - others / jnp.maximum(count, 1), whole

    def _loss(
        self,
        params: Params,
        normaliser: Normaliser,
        trajectory: Trajectory,
        advantage: Float[Array, "time env"],
        whole: Bool[Array, "time env"],
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        head, _ = self.network.step(params, normaliser, trajectory.inputs, trajectory.memory)
        log_prob = distributions.log_prob(params, head, trajectory.action)
        loss = -jnp.sum(log_prob * advantage, where=whole) / jnp.maximum(jnp.sum(whole), 1)
        return loss, {"policy_loss": loss, **distributions.statistics(params, head)}

    def sample(
        self, params: Params, normaliser: Normaliser, inputs: Inputs, memory: Memory, noise: Any
    ) -> tuple[Float[Array, "*batch action"], Memory]:
        """The action that standard normal `noise` leads to, unbounded as environments clip it."""
        head, memory = self.network.step(params, normaliser, inputs, memory)
        return distributions.draw(params, head, noise), memory

    def policy_state(self, state: CVaRState) -> PolicyState:
        return PolicyState(state.params, state.normaliser, state.limit, state.probability)

    def initial_carry(self, env: Environment) -> Memory:
        """Nothing: the policy has no memory."""
        return self.network.initial_memory()

    def act(
        self,
        env: Environment,
        policy: PolicyState,
        carry: Memory,
        obs: Float[Array, "*batch obs"],
        previous_action: Float[Array, "*batch action"],
        previous_reward: Float[Array, "*batch"],
        previous_cost: Float[Array, "*batch"],
        key: Array,
        deterministic: bool | Bool[Array, ""] = False,
    ) -> tuple[Float[Array, "*batch action"], Memory]:
        """A trained policy's action."""
        inputs = Inputs(obs, previous_action, previous_reward, previous_cost)
        noise = jnp.where(deterministic, 0.0, jax.random.normal(key, previous_action.shape))
        return self.sample(policy.params, policy.normaliser, inputs, carry, noise)


OPTIMISER = optax.scale_by_adam()
"""Adam without its learning rate, which is part of the state so that it can differ between lanes."""


def _spent(cost: Float[Array, "time env"], first: Bool[Array, "time env"]) -> Float[Array, "time env"]:
    """What each step's episode has cost before it."""

    def forwards(total: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        total = jnp.where(x[1], 0.0, total)
        return total + x[0], total

    return jax.lax.scan(forwards, jnp.zeros_like(cost[0]), (cost, first))[1]
