"""The actor-critic of the PPO core: what the network's outputs mean, acting, and estimating costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from qcrl.algos.limits import asked
from qcrl.algos.multiplier import Multiplier
from qcrl.algos.scales import Scales
from qcrl.algos.settings import PPOSettings
from qcrl.constraints import Constraint, Unit
from qcrl.envs.base import Described, choices_of, images_of, mask_of, numbers_of
from qcrl.kinds import Json, Number, Tree
from qcrl.nets import distributions
from qcrl.nets.network import Inputs, Memory, Network, Normaliser, Params, cast_kernels, only_heads
from qcrl.ranges import end, is_range
from qcrl.sampling.record import State

BUDGET_RANGE = -0.2, 1.0
"""How far over the limit an episode can be seen to be, and the whole budget."""
ANY_SHARE, ANY_POSITION = (0.5, 1 / 12), (0.0, 1 / 3)
"""Mean and variance of a share that may be any, and of a place in a range, which is seen from -1 to 1."""
WHOLE = 1.0
"""What a budget is compared with on the fixed scale: while nothing is spent 0 is seen, as if there were none."""
OVER = -1.0
"""What is seen on the fixed scale of a limit that is passed: another situation than one that is nearly reached."""


class Estimate(NamedTuple):
    """The network's outputs, read: the policy's head and all critics."""

    head: Float[Array, "*batch action"]
    """The mean action, or the logits of discrete ones."""
    value: Float[Array, "*batch"]
    cost: Tree
    """What the first constraint's critic says."""
    further: tuple[Tree, ...] = ()
    """What those of others say that hold together with it."""

    @property
    def costs(self) -> tuple[Tree, ...]:
        return self.cost, *self.further


class Actor(NamedTuple):
    """All that acting and cost estimates need."""

    params: Params
    normaliser: Normaliser
    constraints: tuple[Constraint, ...]
    cost_unit: Tree = ()
    """What costs are divided by, where that follows the task."""
    asked: Tree = ()
    """Where in the ranges of its constraint it acts, where that is the same for all episodes."""


class PPOLearner(NamedTuple):
    """What an algorithm on the PPO core carries from iteration to iteration."""

    params: Params
    normaliser: Normaliser
    optimiser: Tree
    multiplier: Multiplier
    scales: Scales = Scales()
    """Of the first constraint."""
    further: tuple[Multiplier, ...] = ()
    """Of the others that hold together with it."""
    limits: Tree = ()
    """Those that training works with, one for each constraint, where they may be others than asked for."""

    @property
    def multipliers(self) -> tuple[Multiplier, ...]:
        return self.multiplier, *self.further


@dataclass(frozen=True)
class ActorCritic(PPOSettings):
    """The pure functions that acting needs. The environment is a static argument."""

    sees_images = True

    def critic_of(self, constraint: Constraint) -> "ActorCritic":
        """The algorithm whose cost head, advantage, loss and statistic serve a constraint of this kind."""
        return self

    def critics(self, constraints: Sequence[Constraint]) -> list["ActorCritic"]:
        """One for each constraint."""
        return [self.critic_of(constraint) for constraint in constraints] or [self]

    @property
    def cost_outputs(self) -> int:
        """Number of the network's outputs that speak about the costs of one constraint."""
        raise NotImplementedError

    def read_cost_head(self, outputs: Float[Array, "*batch outputs"]) -> Tree:
        """The cost critic's estimate of the discounted cost to go, in scaled costs."""
        raise NotImplementedError

    def unit(self, scale: Unit, constraints: tuple[Constraint, ...]) -> Unit:
        """What costs are divided by for the first of these: with others beside it its limit, alone the scale."""
        return scale if len(constraints) == 1 else in_limits(constraints[0], scale)

    def unscale(self, estimate: Tree, unit: Unit) -> Tree:
        """The same estimate in the task's own costs; `unit` is what they are divided by."""
        return jax.tree.map(lambda x: unit * x, estimate)

    def cost_unit(self, learner: PPOLearner) -> Unit:
        """What costs are divided by inside the learner, where there is one constraint."""
        return learner.scales.cost.unit if self.cost_scale == "auto" else self.cost_scale

    def network(self, env: Described) -> Network:
        clip = self.observation_clip if self.normalise_observations else math.inf
        shape = self.hidden_sizes, self.lstm_size, self.skip, self.cost_input, clip, self.late_cost
        return Network(*shape, len(env.costs), self.separate_critics, choices_of(env), images_of(env))

    def init_params(
        self, env: Described, key: Array, constraints: Sequence[Constraint] = ()
    ) -> tuple[Params, Normaliser]:
        """For these constraints; without any, for one of the algorithm's own kind."""
        critics = self.critics(constraints)
        outputs = env.action_size + 1 + sum(critic.cost_outputs for critic in critics)
        size = env.observation_size + self._added(env, constraints)
        params, normaliser = self.network(env).init(key, size, env.action_size, outputs)
        normaliser = self.hold(env, constraints, normaliser)
        if numbers_of(env):
            params |= {"log_std": jnp.full(numbers_of(env), self.initial_log_std, jnp.float32)}
            for name in (f"{trunk}_{place}" for trunk in ("mlp", "critic") for place in range(len(self.hidden_sizes))):
                if name in params:
                    params[name]["kernel"] *= self.initial_gain
        # All but the value's, which lies between those of the policy and of the cost critics.
        for name, before in (("heads", 0), ("critic_heads", env.action_size)):
            if self.initial_head != 1 and name in params:
                places = before + jnp.arange(params[name]["bias"].size)
                params[name]["kernel"] *= jnp.where(places == env.action_size, 1.0, self.initial_head)
        return params, normaliser

    def _added(self, env: Described, constraints: Sequence[Constraint]) -> int:
        """How many numbers `see` adds to an observation."""
        drawn = sum(1 + is_range(each.limit) + is_range(each.share) for each in constraints if each.ranged)
        return self._budgets(constraints) + self.budget_input * env.timed + drawn

    def _budgets(self, constraints: Sequence[Constraint]) -> int:
        """How many of them are shares of budgets; they come first."""
        return self.budget_input * len(self.critics(constraints)) * len(self.budget_parts)

    def hold(self, env: Described, constraints: Sequence[Constraint], normaliser: Normaliser) -> Normaliser:
        """With what is left on a fixed scale, where it is: beside what was seen so far, more would look absurd."""
        if self.normalise_budget:
            return normaliser
        start = env.observation_size
        drawn = start + self._budgets(constraints) + self.budget_input * env.timed
        end_ = start + self._added(env, constraints)
        # A ranged constraint is alone. Behind its places in the ranges comes what is left of the highest limit.
        kinds = [(ANY_SHARE, start, end_), (ANY_POSITION, drawn, max(drawn, end_ - 1))]
        mean, variance = normaliser.mean, normaliser.variance
        for (usual, spread), first, last in kinds:
            mean, variance = mean.at[first:last].set(usual), variance.at[first:last].set(spread)
        mean = mean.at[start : start + self._budgets(constraints)].set(WHOLE)
        return normaliser._replace(mean=mean, variance=variance)

    def computing(self, params: Params) -> Params:
        """Parameters in the type that products run in."""
        return cast_kernels(params, jnp.bfloat16 if self.short_products else jnp.float32)

    def policy_state(self, env: Described, state: State) -> Actor:
        learner: PPOLearner = state.learner
        unit = self.cost_unit(learner) if self.cost_scale == "auto" else ()
        return Actor(learner.params, learner.normaliser, state.constraints, unit)

    def working(self, state: State) -> State:
        """With the constraints that the policy sees and learns from at present; those that steer are as asked for."""
        return state

    def actor(self, env: Described, state: State) -> Actor:
        """With the policy's head alone."""
        policy = self.policy_state(env, self.working(state))
        return policy._replace(params=self.computing(only_heads(policy.params, env.action_size)))

    def initial_memory(self, env: Described) -> Memory:
        return self.network(env).initial_memory()

    def sample(
        self, env: Described, actor: Actor, inputs: Inputs, memory: Memory, noise: Float[Array, "*batch action"]
    ) -> tuple[Float[Array, "*batch action"], Memory]:
        seen = self.see(env, actor.constraints, asking(actor, inputs))
        outputs, memory = self.network(env).step(actor.params, actor.normaliser, seen, memory)
        head = distributions.forbid(self.squash(actor.params, outputs), mask_of(env, inputs.obs))
        return distributions.draw(actor.params, head, noise, choices_of(env)), memory

    def act(
        self, env: Described, policy: Actor, inputs: Inputs, memory: Memory, key: Array, deterministic: bool = False
    ) -> tuple[Float[Array, "*batch action"], Memory]:
        policy = policy._replace(params=only_heads(policy.params, env.action_size))
        return super().act(env, policy, inputs, memory, key, deterministic)

    def critic(self, env: Described, policy: Actor, inputs: Inputs, memory: Memory) -> Tree:
        """What the cost critic expects of the discounted cost to go: its mean, or for QCPO a CostDistribution."""
        seen = self.see(env, policy.constraints, asking(policy, inputs))
        outputs, _ = self.network(env).step(policy.params, policy.normaliser, seen, memory)
        scale = policy.cost_unit if self.cost_scale == "auto" else self.cost_scale
        first = self.critic_of(policy.constraints[0])
        return first.unscale(self.read(outputs, policy.constraints).cost, first.unit(scale, policy.constraints))

    @property
    def needs(self) -> tuple[str, ...]:
        cost = self.cost_input != "none" or self.budget_input
        return ("reward",) * (self.lstm_size > 0) + ("cost",) * cost

    def forward(self, env: Described, constraints: Sequence[Constraint]) -> Json | None:
        return self.network(env).describe() | {
            "needs": list(self.needs),
            "choices": list(choices_of(env)) or [env.action_size] * env.discrete,
            "masks": getattr(env, "masks", 0),
            "tanh_mean": self.tanh_mean,
            "left": self._left(env, constraints),
        }

    def _left(self, env: Described, constraints: Sequence[Constraint]) -> list[Json]:
        """What `see` adds to observations, as `runs.forward.Left` reads it."""
        least = 0.0 if self.cost_scale == "auto" else self.cost_scale

        def budget(constraint: Constraint, whole: Number = None, part: float = 1.0) -> Json:
            lowest, highest = (float(end(constraint.limit, which)) for which in (0, 1))
            known = whole if lowest < highest else max(lowest, least) or 1.0
            own = {"limit": [lowest, highest], "unit": known, "least": least, "bounds": list(BUDGET_RANGE)}
            own |= {"part": part} | ({} if self.normalise_budget else {"over": OVER})
            return {"kind": "budget", "which": env.costs.index(constraint.cost)} | own

        parts = self.budget_parts if self.budget_input else ()
        left = [budget(each, part=part) for each in constraints for part in parts]
        if self.budget_input and env.timed:
            left.append({"kind": "time", "which": 0, "limit": [0.0, float(env.horizon)]})
        if constraints[0].ranged:
            ranges = enumerate((constraints[0].limit, constraints[0].share))
            left += [{"kind": "asked", "which": axis} for axis, field in ranges if is_range(field)]
            left.append(budget(constraints[0], max(float(end(constraints[0].limit, 1)), least) or 1.0))
        return left

    def see(self, env: Described, constraints: tuple[Constraint, ...], inputs: Inputs) -> Inputs:
        """What the network sees of what is known: with the budget and the time that are left, where it shall."""
        left = []
        for constraint in constraints if self.budget_input else ():
            limit, spent = asked(constraint, inputs).limit, inputs.spent[..., env.costs.index(constraint.cost)]
            share = self._share(limit, spent, limit)
            left += [self._budget(share / part) for part in self.budget_parts]
        if self.budget_input and env.timed:
            left.append(1 - inputs.time / env.horizon)
        if constraints[0].ranged:
            left += self._drawn(env, constraints[0], inputs)
        if not left:
            return inputs
        return inputs._replace(obs=jnp.concatenate([inputs.obs, jnp.stack(left, axis=-1)], axis=-1))

    def _share(self, limit: Unit, spent: Float[Array, "*batch"], full: Unit) -> Float[Array, "*batch"]:
        """What is left, as a share of a full budget. On the fixed scale one of 0 is whole until something is spent."""
        share = (limit - spent) / self._whole(full)
        return share if self.normalise_budget else jnp.where((full <= 0) & (spent <= 0), WHOLE, share)

    def _budget(self, share: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        seen = jnp.clip(share, *BUDGET_RANGE)
        return seen if self.normalise_budget else jnp.where(share < 0, OVER, seen)

    def _whole(self, limit: Float[Array, "*batch"] | float) -> Float[Array, "*batch"]:
        """The whole budget, which a limit of 0 does not tell."""
        if self.cost_scale == "auto":
            return jnp.where(limit > 0, limit, 1.0)  # type: ignore[operator]
        return jnp.maximum(limit, self.cost_scale)

    def _drawn(self, env: Described, constraint: Constraint, inputs: Inputs) -> list[Float[Array, "*batch"]]:
        """What the episode was asked for, and what is left of its limit as a share of the highest."""
        limit, spent = asked(constraint, inputs).limit, inputs.spent[..., env.costs.index(constraint.cost)]
        fields = (constraint.limit, constraint.share)
        positions = [2 * inputs.asked[..., axis] - 1 for axis, field in enumerate(fields) if is_range(field)]
        return [*positions, self._budget(self._share(limit, spent, end(constraint.limit, 1)))]

    def read(self, outputs: Float[Array, "*batch outputs"], constraints: Sequence[Constraint] = ()) -> Estimate:
        critics = self.critics(constraints)
        sizes = [1, *(critic.cost_outputs for critic in critics)]
        ends = [outputs.shape[-1] - sum(sizes[place:]) for place in range(len(sizes))]
        head, value, *costs = jnp.split(outputs, ends, axis=-1)
        first, *further = (critic.read_cost_head(cost) for critic, cost in zip(critics, costs))
        return Estimate(head, value[..., 0], first, tuple(further))

    def squash(self, params: Params, head: Float[Array, "*batch action"]) -> Float[Array, "*batch action"]:
        """The mean action from the policy's head; logits stay as they are."""
        if not self.tanh_mean or "log_std" not in params:
            return head
        numbers = params["log_std"].size
        if numbers == head.shape[-1]:
            return jnp.tanh(head)
        return jnp.concatenate([jnp.tanh(head[..., :numbers]), head[..., numbers:]], axis=-1)


def asking(actor: Actor, inputs: Inputs) -> Inputs:
    """With what the actor is asked for, where that is the same for all episodes."""
    if isinstance(actor.asked, tuple):
        return inputs
    return inputs._replace(asked=jnp.broadcast_to(actor.asked, (*jnp.shape(inputs.time), len(actor.asked))))


def in_limits(constraint: Constraint, otherwise: Unit) -> Unit:
    """The limit as what costs are divided by; where it is 0, something else."""
    return jnp.where(constraint.limit > 0, constraint.limit, otherwise)
