"""The SAC core of WCSAC: blocks of steps and of gradient steps in turn, on a replay buffer in device memory.

An algorithm adds to it critics (`critic_count`), their losses (`cost_losses`), and a term of the policy's loss with the
weight that goes with it (`safety`). Without them this is plain SAC, which pays no attention to costs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from qcrl.algos import replay_buffer
from qcrl.algos.algorithm import Algorithm, raw_key
from qcrl.algos.scales import Scale, Scales
from qcrl.constraints import Constraint, Unit
from qcrl.envs.base import Described
from qcrl.errors import UserError
from qcrl.kinds import Json, Settings, Tree
from qcrl.nets import soft
from qcrl.nets.network import Inputs, Memory
from qcrl.nets.soft import Layers
from qcrl.sampling.learner import Scalars
from qcrl.sampling.record import Experience, State, row_size, unpack

Params = dict[str, Tree]
OPTIMISER = optax.scale_by_adam()
"""Adam without its learning rate, which is part of the state so that it can differ between lanes."""


class SACLearner(NamedTuple):
    """What gradient steps change."""

    params: Params
    """Of `policy` and `critics`, and what `temperature` and `safety_weight` are the softplus of."""
    targets: Layers
    """The critics as they were: a running mean of their parameters."""
    optimiser: Tree
    scales: Scales = Scales()
    """What rewards and costs are divided by, where that follows the task."""


class SACActor(NamedTuple):
    """All that acting and cost estimates need."""

    policy: Layers
    critics: Layers
    random: Bool[Array, ""]
    """Actions are still uniformly random."""
    cost_unit: Tree = ()
    """What costs are divided by, where that follows the task."""


class Draw(NamedTuple):
    """What a gradient step is taken on: rows of the replay, and noise for both of the policy's actions."""

    rows: Float[Array, "batch row"]
    noise: Float[Array, "2 batch action"]


@dataclass(frozen=True)
class SAC(Algorithm):
    """Maximise return and entropy, with no constraint."""

    discrete_actions = False
    critic_count: ClassVar[int] = 2
    """Of rewards two, the lower of which counts; further ones are of costs."""

    num_envs: int = 16
    """Environments stepped side by side."""
    steps_per_env: int = 500
    """Steps taken in each environment per iteration, which is one row of the metrics."""
    learning_rate: float = 1e-3
    """Adam's learning rate for policy, critics and temperature."""
    block_length: int = 4  # type: ignore[assignment]
    """Steps taken in each environment between two rounds of gradient steps."""
    steps_per_update: int = 4
    """Environment steps, of all environments together, per gradient step."""
    batch_size: int = 256
    """Records drawn for a gradient step."""
    replay_size: int = 1_000_000
    """Records kept; the oldest make room for new ones."""
    start_steps: int = 500
    """First environment steps, with random actions and no learning."""
    discount: float = 0.99
    """Discount factor of rewards and costs."""
    polyak: float = 0.995
    """Share of the target critics that stays at a gradient step."""
    reward_scale: float | Literal["auto"] = 1.0
    """Rewards are divided by this inside the learner; auto is the spread of rewards so far."""
    cost_scale: float | Literal["auto"] = 1.0
    """Costs and the limit are divided by this inside the learner; auto is the spread of costs so far."""
    entropy_per_action: float = -1.0
    """Entropy that the temperature is steered to, per dimension of the action."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Sizes of the ReLU layers of every network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = ("block_length", "steps_per_update", "batch_size", "replay_size")
        self.require("be at least 1", lambda x: x >= 1, *counts)
        self.require("be at least 0", lambda x: x >= 0, "start_steps")
        self.require("lie between 0 and 1", lambda x: 0 <= x <= 1, "discount", "polyak")
        self.require("be greater than 0, or auto", lambda x: x == "auto" or x > 0, "reward_scale", "cost_scale")
        if self.steps_per_env % self.block_length:
            raise UserError(
                f"steps_per_env is {self.steps_per_env}, but must be a multiple of block_length ({self.block_length})"
            )
        if self.block % self.steps_per_update or self.block > self.replay_size:
            raise UserError(
                f"num_envs x block_length is {self.block}, but must be a multiple of steps_per_update "
                f"({self.steps_per_update}) and at most replay_size ({self.replay_size})"
            )

    @property
    def block(self) -> int:
        """Steps of all environments between two rounds of gradient steps."""
        return self.num_envs * self.block_length

    def cost_losses(self, values: Array, next_values: Array, follows: Array, cost: Array) -> Scalars:
        """Losses of the critics beyond the first two, by name; `cost` is that of the constraint.

        `follows` is 0 where the episode has terminated, else 1.
        """
        return {}

    def safety(
        self, env: Described, params: Params, values: Array, rated: Array, constraint: Constraint, unit: Unit = 1.0
    ) -> tuple[Scalars, Scalars]:
        """Further losses, of the policy and of the safety weight, and figures to report in the costs of the task.

        `values` are the critics on replayed actions, `rated` on the policy's own; only into the latter gradients flow.
        `unit` is what costs are divided by.
        """
        return {}, {}

    def rates(self, learning_rate: Array) -> dict[str, Array | float]:
        """Learning rate of each part of the parameters."""
        return {"policy": learning_rate, "critics": learning_rate, "temperature": learning_rate, "safety_weight": 0.0}

    def bytes_kept(self, env: Described) -> int:
        return 4 * self.replay_size * row_size(env)

    def with_envs(self, count: int, given: Settings) -> Self:
        least = self.steps_per_update // math.gcd(count, self.steps_per_update)
        length = given.get("block_length", least * max(1, round(self.block / count / least)))
        changes: Settings = {"num_envs": count, "block_length": length}
        if "steps_per_env" not in given:
            changes["steps_per_env"] = length * max(1, round(self.steps_per_iteration / count / length))
        return replace(self, **changes)

    def init(self, env: Described, key: Array, constraints: Sequence[Constraint]) -> State:
        key, policy_key, critic_key, env_key = jax.random.split(raw_key(key), 4)
        obs, action, hidden = env.observation_size, env.action_size, self.hidden_sizes
        critics = soft.init_layers(critic_key, (obs + action, *hidden, 1), self.critic_count)
        params = {
            "policy": soft.init_layers(policy_key, (obs, *hidden, 2 * action), 1),
            "critics": critics,
            "temperature": jnp.zeros(()),
            "safety_weight": jnp.zeros(()),
        }
        fresh = lambda scale: Scale.init(self.num_envs) if scale == "auto" else ()
        scales = Scales(fresh(self.reward_scale), fresh(self.cost_scale))
        learner = SACLearner(params, critics, OPTIMISER.init(params), scales)
        replay = jnp.zeros((self.replay_size, row_size(env)))
        return self.start(env, learner, key, env_key, constraints, replay)

    def multiplier(self, learner: SACLearner) -> Float[Array, ""]:
        return jax.nn.softplus(learner.params["safety_weight"])

    def computing(self, layers: Layers) -> Layers:
        """The layers in the type in which gradient steps compute."""
        if not self.short_products:
            return layers
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), layers)

    def memory_interval(self, env: Described) -> int:
        return self.block_length

    def actor(self, env: Described, state: State) -> SACActor:
        params = state.learner.params
        unit = state.learner.scales.cost.unit if self.cost_scale == "auto" else ()
        return SACActor(params["policy"], params["critics"], state.env_steps < self.start_steps, unit)

    def policy_state(self, env: Described, state: State) -> SACActor:
        return self.actor(env, state)._replace(random=jnp.zeros_like(state.alive))

    def sample(
        self, env: Described, actor: SACActor, inputs: Inputs, memory: Memory, noise: Float[Array, "*batch action"]
    ) -> tuple[Float[Array, "*batch action"], Memory]:
        """The policy's action, or at first a uniformly random one."""
        action, _ = soft.act(actor.policy, inputs.obs, noise)
        return jnp.where(actor.random, 2 * jax.scipy.special.ndtr(noise) - 1, action), memory

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def forward(self, env: Described, constraints: Sequence[Constraint]) -> Json:
        return {"kind": "soft", "needs": [], "layers": 1 + len(self.hidden_sizes)}

    def learn(self, env: Described, state: State, experience: Experience) -> tuple[State, Scalars]:
        """The block's steps are stored, and its gradient steps taken, on batches all drawn before the first."""
        key, learn_key = jax.random.split(state.key)
        replay = replay_buffer.store(state.store, experience.rows.reshape(self.block, -1), state.env_steps - self.block)
        scales = self._measure(env, state, experience)
        state = state._replace(store=replay, key=key, learner=state.learner._replace(scales=scales))
        draws = self._draw(env, state, learn_key, self.block // self.steps_per_update)
        rates = self.rates(state.learning_rate)
        learning = state.env_steps > self.start_steps

        def gradient_step(learner: SACLearner, draw: Draw) -> tuple[SACLearner, None]:
            loss = lambda params: self._loss(env, learner._replace(params=params), draw, state.constraints[0])
            gradient, _ = jax.grad(loss, has_aux=True)(learner.params)
            # Without gradients Adam stands still, but for its count. To choose between learners would copy both.
            gradient = jax.tree.map(lambda g: jnp.where(learning, g, 0.0), gradient)
            step, optimiser = OPTIMISER.update(gradient, learner.optimiser)
            optimiser = optimiser._replace(count=jnp.where(learning, optimiser.count, 0))
            params = {
                name: jax.tree.map(lambda p, u, rate=rates[name]: p - rate * u, part, step[name])
                for name, part in learner.params.items()
            }
            targets = optax.incremental_update(params["critics"], learner.targets, 1 - self.polyak)
            return SACLearner(params, targets, optimiser, scales), None

        with jax.named_scope("update"):
            return state._replace(learner=jax.lax.scan(gradient_step, state.learner, draws)[0]), {}

    def _measure(self, env: Described, state: State, experience: Experience) -> Scales:
        """The scales that follow the task, this block included.

        Those of single steps: the temperature begins where a step's entropy counts about as much as its reward.
        """
        (reward, cost), record = state.learner.scales, unpack(env, experience.rows)
        first = jnp.concatenate([experience.start.first[None], record.ended[:-1]])
        if self.reward_scale == "auto":
            reward = reward.update(record.reward, first, 0.0)
        if self.cost_scale == "auto":
            kind = env.costs.index(state.constraints[0].cost)
            cost = cost.update(record.cost[..., kind], first, 0.0)
        return Scales(reward, cost)

    def _draw(self, env: Described, state: State, key: Array, updates: int) -> Draw:
        """For so many gradient steps."""
        sample_key, noise_key = jax.random.split(key)
        rows = replay_buffer.sample(state.store, state.env_steps, sample_key, (updates, self.batch_size))
        return Draw(rows, jax.random.normal(noise_key, (updates, 2, self.batch_size, env.action_size)))

    def _loss(
        self, env: Described, learner: SACLearner, draw: Draw, constraint: Constraint
    ) -> tuple[Float[Array, ""], Scalars]:
        """The sum of all losses; each reaches the parameters of its own part only."""
        params, targets = learner.params, learner.targets
        reward_unit, cost_unit = (
            scale.unit if fixed == "auto" else fixed
            for scale, fixed in zip(learner.scales, (self.reward_scale, self.cost_scale))
        )
        params = params | {name: self.computing(params[name]) for name in ("policy", "critics")}
        record, fixed = unpack(env, draw.rows), jax.lax.stop_gradient(params)
        # After a time limit the critics' estimate follows.
        follows = 1 - record.terminated.astype(jnp.float32)
        temperature = jax.nn.softplus(params["temperature"])
        now_and_next = soft.act(params["policy"], jnp.stack([record.obs, record.next_obs]), draw.noise)
        action, log_prob = (x[0] for x in now_and_next)
        next_action, next_log_prob = (jax.lax.stop_gradient(x[1]) for x in now_and_next)
        next_values = soft.q_values(self.computing(targets), record.next_obs, next_action)
        values = soft.q_values(params["critics"], record.obs, record.action)
        rated = soft.q_values(fixed["critics"], record.obs, action)
        soft_value = jnp.min(next_values[:2], axis=0) - jax.nn.softplus(fixed["temperature"]) * next_log_prob
        target = record.reward / reward_unit + self.discount * follows * soft_value
        entropy = -jnp.mean(log_prob)
        safety, figures = self.safety(env, params, jax.lax.stop_gradient(values), rated, constraint, cost_unit)
        cost = record.cost[..., env.costs.index(constraint.cost)] / cost_unit
        losses = {
            "value_loss": 0.5 * jnp.mean(jnp.sum(jnp.square(values[:2] - target), axis=0)),
            **self.cost_losses(values, next_values, follows, cost),
            "policy_loss": -jnp.mean(jnp.min(rated[:2], axis=0)) - jax.nn.softplus(fixed["temperature"]) * entropy,
            "temperature_loss": temperature
            * jax.lax.stop_gradient(entropy - self.entropy_per_action * env.action_size),
            **safety,
        }
        figures = {"entropy": entropy, "temperature": temperature, "value": jnp.mean(values[:2]), **figures}
        return jnp.sum(jnp.stack(list(losses.values()))), losses | figures

    def report(self, env: Described, state: State) -> tuple[State, Scalars]:
        """The losses on one more batch: reporting them at every gradient step would slow it down."""
        key, report_key = jax.random.split(state.key)
        draw = jax.tree.map(lambda x: x[0], self._draw(env, state, report_key, 1))
        _, scalars = self._loss(env, state.learner, draw, state.constraints[0])
        return state._replace(key=key), scalars
