"""Outage-PPO: PPO constrained at the outage itself, an ordinary expected cost once the budget is in view.

Let C_t be the cost so far and d the limit. With x = (state, budget left, time left) the problem is Markov, and

    o_t = 1{C_(t+1) > d} - 1{C_t > d}

is 1 on the step that takes the episode over its limit and 0 on all others, so that it sums to 1{C_T > d}. The critic
P(x_t) = E[o_t + o_(t+1) + ...] is the probability that an outage is still to come, without any discount: what is
learned is what is constrained.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from qcrl.algos import limits
from qcrl.algos.actor_critic import PPOLearner, in_limits
from qcrl.algos.advantages import Links, gae
from qcrl.algos.batch import CostSignal, Sampled
from qcrl.algos.losses import value_loss
from qcrl.algos.multiplier import Multiplier, episode_window
from qcrl.algos.ppo import PPO
from qcrl.algos.ppo_lag import PPOLag
from qcrl.algos.presets import AS_RELEASED, CHOSEN, HOST, SCALE, SCALE_STEPS, TUNED
from qcrl.algos.settings import PPOSettings
from qcrl.constraints import Constraint, Mean, Outage, Steering, Unit
from qcrl.envs.base import Described
from qcrl.kinds import Settings
from qcrl.quantiles import empirical_quantile
from qcrl.sampling.learner import Scalars
from qcrl.sampling.record import Experience, State, mean_of

FALLING = 0.02
"""By which share costs must be lower to count as falling."""
MEAN_MARGIN = 0.1
"""A mean is steered to at most so far below its limit, whatever the margin: it scatters less than an outage."""


def outages(over: Bool[Array, "*batch"], over_after: Bool[Array, "*batch"]) -> Float[Array, "*batch"]:
    """o_t = 1{C_(t+1) > d} - 1{C_t > d}; costs are not negative, so it is 0 or 1."""
    return over_after.astype(jnp.float32) - over.astype(jnp.float32)


@dataclass(frozen=True)
class OutagePPO(PPO):
    """Maximise return subject to Pr(episode cost > limit) <= probability, by a critic of that probability."""

    name, label, trains_under, also_under, several = "outage_ppo", "Outage-PPO", Outage, (Mean,), True
    outages_in_window, draws_limits = 10, True

    outage_scale: float = 10.0
    """An outage counts so much inside the learner, beside rewards of the order of 1."""
    outage_loss_weight: float = 1.0
    """Weight of the outage critic's loss."""
    steering_outages: float = 10.0
    """The multiplier is steered by as many recent episodes as hold so many allowed outages, or by `driver_window`."""
    falls_from: float = 0.0
    """The target begins at this probability, where it is above the one asked for, and comes down to that."""
    falls_for: float = 250.0
    """Iterations until the target has come down."""
    most_over: float = 1.0
    """Where a larger share of recent episodes is over the limit, training works with one that half of them are over."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("be greater than 0", lambda x: x > 0, "outage_scale", "steering_outages", "falls_for")
        self.require("be at least 0", lambda x: x >= 0, "outage_loss_weight")
        self.require("be at least 0 and at most 1", lambda x: 0 <= x <= 1, "falls_from")
        self.require("be greater than 0 and at most 1", lambda x: 0 < x <= 1, "most_over")

    def critic_of(self, constraint: Constraint) -> PPO:
        return Undiscounted.like(self) if isinstance(constraint, Mean) else self

    @property
    def steers_by(self) -> str:
        return "outage ratio"

    def steering_window(self, state: State) -> Int[Array, ""]:
        """As many as hold some allowed outages, so that the multiplier does not follow chance alone."""
        needed = jnp.ceil(self.steering_outages / state.probability - 1e-3).astype(jnp.int32)
        return jnp.maximum(self.driver_window, needed)

    def steering(self, env: Described, state: State) -> Steering:
        """The outage as a multiple of the probability, so that the same gains serve all probabilities."""
        constraint = state.constraints[0]
        if constraint.ranged:
            costs = state.costs_of(env, constraint)
            target = jnp.asarray(1 - self.target_margin)
            ratio = limits.outage_ratios(constraint, costs, state.window, self.outages_in_window, target)
        else:
            outage, target = super().steering(env, state)  # type: ignore[assignment]
            ratio = outage / self.eased(state)
            if self.most_over < 1:
                ratio = jnp.where(self._coming_down(env, state, outage * state.probability), target, ratio)
        return Steering(ratio, target)

    def eased(self, state: State) -> Unit:
        """How many times the probability that was asked for is the target at present."""
        if self.falls_from == 0:
            return 1.0
        left = jnp.maximum(0.0, 1 - state.iteration / self.falls_for)
        return jnp.maximum(1.0, self.falls_from / state.probability) ** left

    @property
    def cost_outputs(self) -> int:
        return 1

    def read_cost_head(self, outputs: Float[Array, "*batch 1"]) -> Float[Array, "*batch"]:
        return outputs[..., 0]

    def unscale(self, estimate: Float[Array, "*batch"], unit: Unit) -> "OutageProbability":
        return OutageProbability(jnp.clip(estimate / self.outage_scale, 0.0, 1.0))

    def cost_signal(self, env: Described, state: State, sampled: Sampled) -> CostSignal:
        trajectory, now, later, links = sampled
        constraint = state.constraints[0]
        kind = env.costs.index(constraint.cost)
        limit = limits.asked(constraint, trajectory.inputs).limit
        over, over_after = (x[..., kind] > limit for x in (trajectory.inputs.spent, trajectory.episode_cost))
        # Nothing is to come once it has happened, nor after an episode's end, whatever `time_limit` says for rewards.
        now, later = jnp.where(over, 0.0, now), jnp.where(over_after, 0.0, later)
        links = Links(trajectory.ended, links.continues)
        outage = self.outage_scale * outages(over, over_after)
        advantage = gae(outage, now, later, links, 1.0, self.cost_gae_lambda)
        targets = Targets(now + gae(outage, now, later, links, 1.0, self.cost_target_lambda), ~over)
        statistics = {"outage_estimate": jnp.mean(now) / self.outage_scale}
        if not constraint.ranged:
            return CostSignal(advantage, targets, statistics)
        nodes = state.learner.multiplier.value
        weight, mean = limits.shares(constraint, trajectory.inputs.asked) @ nodes, jnp.mean(nodes)
        mean = jnp.maximum(mean, 1e-6)
        # Every limit is a problem of its own, and none shall drown the others because its multiplier is high.
        importance = (1 + mean) / (1 + weight) if self.divide_by_multiplier else jnp.ones_like(weight)
        return CostSignal(weight / mean * importance * advantage, targets, statistics, importance)

    def _coming_down(self, env: Described, state: State, outage: Float[Array, ""]) -> Bool[Array, ""]:
        """Far from the limit and on the way to it: a multiplier that rose further meanwhile would be far too high then.

        Of the episodes that it is steered by, the newer half costs less than the older one.
        """
        count = self.steering_window(state)
        newer, all_ = state.window.recent(count // 2), state.window.recent(count)
        costs = state.costs_of(env, state.constraints[0])
        return (outage > self.most_over) & (mean_of(costs, newer) < (1 - FALLING) * mean_of(costs, all_ & ~newer))

    def _raised(self, env: Described, state: State) -> Unit:
        """The first constraint's limit to work with: an outage that is certain teaches nothing."""
        constraint = state.constraints[0]
        if not isinstance(constraint, Outage):
            return jnp.asarray(constraint.limit)
        count, costs = self.steering_window(state), state.costs_of(env, constraint)
        # Of the newest episodes: older ones are of policies that may have cost much less, and say nothing of this one.
        usual = empirical_quantile(costs, state.window.recent(count // 4), jnp.asarray(0.5))
        certain = jnp.mean(costs > constraint.limit, where=state.window.recent(count)) > self.most_over
        # A little less, so that episodes of just this cost are over.
        return jnp.where(certain, jnp.maximum(constraint.limit, (1 - 1e-4) * usual), constraint.limit)

    def init(self, env: Described, key: Array, constraints: Sequence[Constraint]) -> State:
        state = super().init(env, key, constraints)
        if self.most_over == 1 or constraints[0].ranged:
            return state
        asked = tuple(jnp.asarray(each.limit, jnp.float32) for each in constraints)
        return state._replace(learner=state.learner._replace(limits=asked))

    def working(self, state: State) -> State:
        if not state.learner.limits:
            return state
        own = zip(state.constraints, state.learner.limits)
        raised = (each.at(limit) if isinstance(each, Outage) else each for each, limit in own)
        return state._replace(constraints=tuple(raised))

    def learn(self, env: Described, state: State, experience: Experience) -> tuple[State, Scalars]:
        after, scalars = super().learn(env, state, experience)
        if not state.learner.limits:
            return after, scalars
        raised = tuple(self._raised(env, view) for _, view in self._views(after))
        return after._replace(learner=after.learner._replace(limits=raised)), scalars

    def first_multiplier(self, constraint: Constraint) -> Multiplier:
        first = super().first_multiplier(constraint)
        count = math.prod(limits.counts(constraint))
        return jax.tree.map(lambda x: jnp.full(count, x), first) if constraint.ranged else first

    def multiplier(self, learner: PPOLearner) -> Float[Array, ""]:
        value = learner.multiplier.value
        return jnp.mean(value) if value.ndim else value

    def multipliers(self, learner: PPOLearner) -> tuple[Float[Array, ""], ...]:
        return self.multiplier(learner), *(each.value for each in learner.further)

    def fewest_episodes(self, constraint: Constraint) -> int:
        if constraint.ranged:
            return limits.fewest_episodes(constraint, self.outages_in_window)
        share = constraint.share if isinstance(constraint, Outage) else None
        return 0 if share is None else episode_window(0, share, math.ceil(self.steering_outages))

    def cost_loss(self, estimate: Float[Array, "*batch"], targets: "Targets") -> tuple[Float[Array, ""], Scalars]:
        """Where the limit is passed there is nothing to learn."""
        loss = value_loss(*(jnp.where(targets.open, each, 0.0) for each in (estimate, targets.returns)))
        return self.outage_loss_weight * loss, {"outage_loss": loss}


@dataclass(frozen=True)
class Undiscounted(PPOLag):
    """What serves a mean constraint: the critic of the cost to go as PPO_Lag has it, without discount, in limits."""

    @classmethod
    def like(cls, algorithm: PPOSettings) -> Self:
        margin = min(algorithm.target_margin, MEAN_MARGIN)
        return replace(super().like(algorithm), discount=1.0, time_limit="terminal", target_margin=margin)

    def unit(self, scale: Unit, constraints: tuple[Constraint, ...]) -> Unit:
        return in_limits(constraints[0], scale)


class OutageProbability(NamedTuple):
    """What the critic expects: the probability that the limit will be passed, if it is not passed already."""

    value: Float[Array, "*batch"]


class Targets(NamedTuple):
    """What the outage critic is trained on."""

    returns: Float[Array, "*batch"]
    open: Bool[Array, "*batch"]
    """The limit is not passed yet."""


# The batch is as large as QCPO's, in many environments for few steps each. The multiplier moves by shares of the
# probability.
OWN: Settings = dict(
    num_envs=96, steps_per_env=125, chunk_length=125, out_of_phase=True, budget_input=True, cost_scale=1.0, skip=False
)
tuned = OutagePPO(**AS_RELEASED | TUNED | OWN, integral_gain=0.025, proportional_gain=0.3, error_clip=1.0)
# Many steps: the learning rate ends at 0, and small probabilities are come down to.
OWN_SCALE: Settings = dict(
    learning_rate_halving=240.0,
    learning_rate_end=420.0,
    least_multiplier=0.03,
    falls_from=0.1,
    initial_gain=1.6,
    target_margin=0.08,
)
scale = replace(tuned, **SCALE | OWN_SCALE)
# Two cores: a small network, and a batch of 48 episodes. So small a network cannot serve policy and critics at once.
FAST: Settings = dict(
    num_envs=384, epochs=4, minibatches=16, hidden_sizes=(64, 64), separate_critics=True, learning_rate=1e-3, **CHOSEN
)
fast = replace(tuned, **FAST)
# A limit may be hundreds of steps' costs: the last of them must be told apart, and what is spent now is missed long
# after.
OWN_HOST: Settings = dict(
    budget_input=True,
    budget_parts=(1.0, 1 / 8, 1 / 64),
    budget_discount=0.998,
    cost_target_lambda=0.995,
    outage_loss_weight=0.05,
    initial_multiplier=0.3,
    least_multiplier=0.3,
    target_margin=0.25,
    steering_outages=2.0,
    most_over=0.5,
)
host = OutagePPO(**HOST | OWN_HOST)
OutagePPO.presets = {"tuned": tuned, "fast": fast, "scale": scale, "host": host}
OutagePPO.lengths = {"tuned": 5_000_000, "fast": 20_000_000, "scale": SCALE_STEPS}
