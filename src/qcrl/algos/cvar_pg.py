"""Risk-constrained policy gradient (Chow et al. 2017): whole episodes, and three time scales.

With X an episode's cost, R its return and p the level, CVaR(X) is the minimum over nu of nu + E[(X - nu)+] / p. So

    minimise over nu and the policy, maximise over the multiplier:  -E[R] + multiplier (nu + E[(X - nu)+] / p - limit)

is stepped along by its gradients: nu fastest, then the policy, and the multiplier slowest. The gradient in nu is taken
without its factor, the multiplier: nu finds the quantile as well while the constraint does not bind.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from qcrl.algos.algorithm import Algorithm, raw_key
from qcrl.constraints import Constraint, CVaR
from qcrl.envs.base import Described, choices_of, mask_of, numbers_of
from qcrl.errors import UserError
from qcrl.kinds import Json, Tree
from qcrl.nets import distributions
from qcrl.nets.network import Inputs, Memory, Network, Normaliser, Params
from qcrl.sampling.learner import Scalars
from qcrl.sampling.record import Episodes, Experience, Metrics, State, Trajectory, choose, read_trajectory

OPTIMISER = optax.scale_by_adam()
"""Adam without its learning rate, which is part of the state so that it can differ between lanes."""


class CVaRActor(NamedTuple):
    """All that acting needs."""

    params: Params
    normaliser: Normaliser


class CVaRLearner(NamedTuple):
    """What the three time scales change."""

    params: Params
    nu: Float[Array, ""]
    """Follows the (1 - p) quantile of episode costs."""
    multiplier: Float[Array, ""]
    normaliser: Normaliser
    optimiser: Tree


@dataclass(frozen=True)
class CVaRPG(Algorithm):
    """Maximise return subject to CVaR(episode cost) <= limit at a level, by gradients of whole episodes."""

    name, label, trains_under = "cvar_pg", "CVaR-PG", CVaR

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

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("be at least 2", lambda x: x >= 2, "num_envs")
        positive = ("nu_learning_rate", "error_clip", "max_multiplier", "observation_clip")
        self.require("be greater than 0", lambda x: x > 0, *positive)
        self.require("lie between 0 and 1", lambda x: 0 <= x <= 1, "discount")
        self.require("be at least 0", lambda x: x >= 0, "multiplier_learning_rate")

    def check(self, env: Described) -> None:
        super().check(env)
        if env.fixed_length and self.steps_per_env % env.horizon:
            raise UserError(
                f"steps_per_env is {self.steps_per_env}, but cvar_pg learns from whole episodes: give a multiple of "
                f"the {env.horizon} steps of an episode of {env.id}"
            )

    @property
    def network(self) -> Network:
        return Network(self.hidden_sizes, 0, False, "none", self.observation_clip)

    def init(self, env: Described, key: Array, constraints: Sequence[Constraint]) -> State:
        key, network_key, env_key = jax.random.split(raw_key(key), 3)
        size = env.action_size
        params, normaliser = self.network.init(network_key, env.observation_size, size, size)
        if numbers_of(env):
            params |= {"log_std": jnp.full(numbers_of(env), self.initial_log_std, jnp.float32)}
        limit = jnp.asarray(constraints[0].limit, jnp.float32)
        learner = CVaRLearner(params, limit, jnp.zeros(()), normaliser, OPTIMISER.init(params))
        return self.start(env, learner, key, env_key, constraints)

    def multiplier(self, learner: CVaRLearner) -> Float[Array, ""]:
        return learner.multiplier

    def actor(self, env: Described, state: State) -> CVaRActor:
        return CVaRActor(state.learner.params, state.learner.normaliser)

    def sample(
        self, env: Described, actor: CVaRActor, inputs: Inputs, memory: Memory, noise: Float[Array, "*batch action"]
    ) -> tuple[Float[Array, "*batch action"], Memory]:
        head, memory = self.network.step(actor.params, actor.normaliser, inputs, memory)
        head = distributions.forbid(head, mask_of(env, inputs.obs))
        return distributions.draw(actor.params, head, noise, choices_of(env)), memory

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def forward(self, env: Described, constraints: Sequence[Constraint]) -> Json:
        choices = list(choices_of(env)) or [env.action_size] * env.discrete
        return self.network.describe() | {
            "needs": [],
            "choices": choices,
            "masks": getattr(env, "masks", 0),
            "tanh_mean": False,
            "left": [],
        }

    def learn(self, env: Described, state: State, experience: Experience) -> tuple[State, Scalars]:
        """One step of the policy, nu and the multiplier, all from the values of before."""
        before: CVaRLearner = state.learner
        constraint, episodes, level = state.constraints[0], experience.episodes, state.probability
        kind = env.costs.index(constraint.cost)
        share = jnp.mean(episodes.cost[..., kind] > before.nu, where=episodes.finished)
        error = jnp.clip(self.cvar(env, state, episodes) - constraint.limit, -self.error_clip, self.error_clip)
        nu = before.nu - self.nu_learning_rate * (1 - share / level)
        multiplier = jnp.clip(before.multiplier + self.multiplier_learning_rate * error, 0.0, self.max_multiplier)

        trajectory = read_trajectory(env, experience)
        advantage, whole = self.advantage(before, level, trajectory, kind)
        gradient, scalars = jax.grad(self._loss, has_aux=True)(
            before.params, before.normaliser, trajectory, advantage, whole, env
        )
        update, optimiser = OPTIMISER.update(gradient, before.optimiser)
        params = jax.tree.map(lambda p, u: p - state.learning_rate * u, before.params, update)
        normaliser = before.normaliser.update(trajectory.inputs.obs)
        learned = CVaRLearner(params, nu, multiplier, normaliser, optimiser)
        learner = choose(jnp.any(episodes.finished), learned, before)._replace(normaliser=normaliser)
        return state._replace(learner=learner), {**scalars, "nu": learner.nu}

    def finish(
        self, env: Described, before: State, now: State, episodes: Episodes, scalars: Scalars
    ) -> tuple[State, Metrics]:
        """The CVaR is reported last: without a finished episode it is no number, which does not mean a broken lane."""
        after, metrics = super().finish(env, before, now, episodes, scalars)
        return after, metrics._replace(scalars=metrics.scalars | {"cvar": self.cvar(env, before, episodes)})

    def cvar(self, env: Described, state: State, episodes: Episodes) -> Float[Array, ""]:
        """nu + E[(X - nu)+] / p over these episodes; NaN where none has finished."""
        nu = state.learner.nu
        excess = jnp.maximum(episodes.cost[..., env.costs.index(state.constraints[0].cost)] - nu, 0.0)
        return nu + jnp.mean(excess, where=episodes.finished) / state.probability

    def advantage(
        self, learner: CVaRLearner, level: Float[Array, ""], trajectory: Trajectory, kind: int
    ) -> tuple[Float[Array, "time env"], Bool[Array, "time env"]]:
        """R - multiplier (X - nu)+ / p of every step's episode, and which steps are of one that is whole in the batch.

        Of the rewards only those to come are counted, and the mean of the other environments at the same time is taken
        off: neither changes the gradient's mean. `kind` is which of the costs X sums.
        """

        def backwards(carry: tuple, x: tuple) -> tuple[tuple, tuple]:
            to_go, total, finished = carry
            reward, cost, ended = x
            to_go = reward + self.discount * jnp.where(ended, 0.0, to_go)
            total = cost + jnp.where(ended, 0.0, total)
            finished = finished | ended
            return (to_go, total, finished), (to_go, total, finished)

        zeros = jnp.zeros_like(trajectory.reward[0])
        steps = trajectory.reward, trajectory.cost[..., kind], trajectory.ended
        start = zeros, zeros, zeros > 0
        _, (to_go, later_cost, finished) = jax.lax.scan(backwards, start, steps, reverse=True)
        episode = jnp.cumsum(trajectory.first, axis=0)
        whole = finished & (episode > 0)
        excess = jnp.maximum(trajectory.inputs.spent[..., kind] + later_cost - learner.nu, 0.0) / level
        gain = to_go - learner.multiplier * excess
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
        env: Described,
    ) -> tuple[Float[Array, ""], Scalars]:
        head, _ = self.network.step(params, normaliser, trajectory.inputs, trajectory.memory)
        head, choices = distributions.forbid(head, mask_of(env, trajectory.inputs.obs)), choices_of(env)
        log_prob = distributions.log_prob(params, head, trajectory.action, choices)
        loss = -jnp.sum(log_prob * advantage, where=whole) / jnp.maximum(jnp.sum(whole), 1)
        return loss, {"policy_loss": loss, **distributions.statistics(params, head, choices)}


paper = CVaRPG()
# Rewards far ahead say little about an action; and the multiplier shall not wind up while costs are still high.
tuned = replace(paper, discount=0.99, error_clip=15.0)
# More, shorter batches: every iteration is only one gradient step.
fast = replace(tuned, num_envs=32)
CVaRPG.presets = {"paper": paper, "authors": paper, "tuned": tuned, "fast": fast}
