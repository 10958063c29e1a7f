"""The SAC core of WCSAC: blocks of steps and of gradient steps in turn, on a replay buffer in device memory.

An algorithm adds to it critics (`critic_count`), their losses (`cost_losses`), and a term of the policy's loss with the
weight that goes with it (`safety`). Without them this is plain SAC, which pays no attention to costs.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from qcrl import rollout
from qcrl.algos import replay_buffer, soft_networks
from qcrl.algos.multiplier import Window
from qcrl.algos.soft_networks import Layers
from qcrl.algos.soft_settings import SoftSettings
from qcrl.algos.state import Metrics
from qcrl.algos.summary import all_finite, choose, summary
from qcrl.envs.base import Environment
from qcrl.networks import Inputs, Memory
from qcrl.rollout import Actors, Episodes

Params = dict[str, Any]
Scalars = dict[str, Float[Array, ""]]
NO_MEMORY = Memory((), ())
ROW_EXTRAS = 6
"""What a record holds beside two observations and an action: reward, cost, terminated, truncated, totals of the episode."""


class Transition(NamedTuple):
    """What a record says."""

    obs: Float[Array, "batch obs"]
    next_obs: Float[Array, "batch obs"]
    action: Float[Array, "batch action"]
    reward: Float[Array, " batch"]
    cost: Float[Array, " batch"]
    follows: Float[Array, " batch"]
    """0 where the episode has terminated, else 1: after a time limit the critics' estimate follows."""


class Learner(NamedTuple):
    """What gradient steps change."""

    params: Params
    """Of `policy` and `critics`, and what `temperature` and `safety_weight` are the softplus of."""
    targets: Layers
    """The critics as they were: a running mean of their parameters."""
    optimiser: Any


class SACState(NamedTuple):
    """All that changes during training, as arrays."""

    learner: Learner
    replay: Float[Array, "capacity record"]
    actors: Actors
    window: Window
    key: Array
    iteration: Int[Array, ""]
    env_steps: Int[Array, ""]
    limit: Float[Array, ""]
    probability: Float[Array, ""]
    learning_rate: Float[Array, ""]
    alive: Bool[Array, ""]
    """False once a loss or a parameter was not finite; all but the replay then stays as it was before."""

    @property
    def multiplier(self) -> Float[Array, ""]:
        return jax.nn.softplus(self.learner.params["safety_weight"])


class SoftPolicy(NamedTuple):
    """All that acting and cost estimates need."""

    policy: Layers
    critics: Layers
    limit: Float[Array, ""]
    probability: Float[Array, ""]


@dataclass(frozen=True)
class SAC(SoftSettings):
    """Maximise return and entropy, with no constraint."""

    @property
    def critic_count(self) -> int:
        return 2

    def replay_bytes(self, env: Environment) -> int:
        """What the replay of one lane takes."""
        return 4 * self.replay_size * (2 * env.observation_size + env.action_size + ROW_EXTRAS)

    def cost_losses(self, values: Array, next_values: Array, batch: Transition) -> Scalars:
        """Losses of the critics beyond the first two, by name."""
        return {}

    def safety(
        self, env: Environment, params: Params, values: Array, rated: Array, limit: Array, probability: Array
    ) -> tuple[Scalars, Scalars]:
        """Further losses, of the policy and of the safety weight, and figures to report.

        `values` are the critics on replayed actions, `rated` on the policy's own; only into the latter gradients flow.
        """
        return {}, {}

    def rates(self, learning_rate: Array) -> dict[str, Array | float]:
        """Learning rate of each part of the parameters."""
        return {"policy": learning_rate, "critics": learning_rate, "temperature": learning_rate, "safety_weight": 0.0}

    def init(self, env: Environment, key: Array, limit: Any, probability: Any) -> SACState:
        """The state before the first iteration."""
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.key_data(key)
        key, policy_key, critic_key, env_key = jax.random.split(key, 4)
        obs, action, hidden = env.observation_size, env.action_size, self.hidden_sizes
        critics = soft_networks.init_layers(critic_key, (obs + action, *hidden, 1), self.critic_count)
        params = {
            "policy": soft_networks.init_layers(policy_key, (obs, *hidden, 2 * action), 1),
            "critics": critics,
            "temperature": jnp.zeros(()),
            "safety_weight": jnp.zeros(()),
        }
        return SACState(
            Learner(params, critics, OPTIMISER.init(params)),
            jnp.zeros((self.replay_size, 2 * obs + action + ROW_EXTRAS)),
            rollout.start(env, env_key, self.num_envs, NO_MEMORY),
            Window.init(self.window),
            key,
            iteration=jnp.zeros((), jnp.int32),
            env_steps=jnp.zeros((), jnp.int32),
            limit=jnp.asarray(limit, jnp.float32),
            probability=jnp.asarray(probability, jnp.float32),
            learning_rate=jnp.full((), self.learning_rate, jnp.float32),
            alive=jnp.ones((), bool),
        )

    def iterate(self, env: Environment, state: SACState) -> tuple[SACState, Metrics]:
        """One iteration. A state that is not alive, or would not be finite afterwards, stays as it was."""
        with self.precision():
            key, reset_key, block_key, report_key = jax.random.split(state.key, 4)
            before = state.env_steps // self.num_envs
            # Drawn once for all blocks: fresh episodes cost more than a block's steps.
            fresh, resets = rollout.plan_resets(env, reset_key, self.steps_per_env, self.num_envs, before)
            # Where episodes can only end with an iteration, its steps need no reset.
            aligned = env.fixed_length and env.horizon % self.steps_per_env == 0

            def block(now: SACState, x: tuple[Array, Any]) -> tuple[SACState, Array]:
                act_key, learn_key = jax.random.split(x[0])
                actors, rows = self._collect(env, now, act_key, None if aligned else fresh, x[1])
                return self.learn_block(env, now._replace(actors=actors), rows, learn_key), rows

            blocks = self.steps_per_env // self.block_length
            xs = jax.random.split(block_key, blocks), resets.reshape(blocks, self.block_length, *resets.shape[1:])
            now, rows = jax.lax.scan(block, state._replace(key=key), xs)
            if aligned:
                ended = jnp.broadcast_to((before + self.steps_per_env) % env.horizon == 0, (self.num_envs,))
                now = now._replace(actors=rollout.begin_again(now.actors, ended, fresh(resets[-1])))
            episodes = self._episodes(env, rows.reshape(self.steps_per_env, *rows.shape[2:]), before)
            return self.finish(env, state, now, episodes, report_key)

    def precision(self) -> AbstractContextManager[Any]:
        """While entered, products run as precisely as asked for."""
        return jax.default_matmul_precision("float32" if self.matmul_precision == "float32" else "tensorfloat32")

    def computing(self, layers: Layers) -> Layers:
        """The layers in the type in which gradient steps compute."""
        if self.matmul_precision != "bfloat16":
            return layers
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16), layers)

    def learn_block(
        self, env: Environment, state: SACState, rows: Float[Array, "time env record"], key: Array
    ) -> SACState:
        """The block's steps are stored, and its gradient steps taken."""
        seen = state.env_steps + self.block
        replay = replay_buffer.store(state.replay, rows.reshape(self.block, -1), state.env_steps)
        learner = self._learn(env, state.learner, replay, seen, state, key)
        return state._replace(learner=learner, replay=replay, env_steps=seen)

    def finish(
        self, env: Environment, before: SACState, now: SACState, episodes: Episodes, key: Array
    ) -> tuple[SACState, Metrics]:
        """The end of an iteration that has led from `before` to `now`, in which `episodes` have ended."""
        losses = self._report(env, now.learner, now.replay, now.env_steps, now, key)
        alive = before.alive & all_finite((now.learner, losses))
        after = now._replace(window=before.window.add(episodes), iteration=before.iteration + 1)
        # The replay is left out: to keep the old one as well would take twice the memory.
        after, old = (state._replace(replay=jnp.zeros(())) for state in (after, before))
        after = choose(alive, after, old)._replace(replay=now.replay, alive=alive)
        episodes = episodes._replace(finished=episodes.finished & alive)
        return after, Metrics(summary(after, self.window) | losses, episodes)

    def actor(self, env: Environment, state: SACState) -> tuple[Layers, Bool[Array, ""]]:
        """What `sample` needs of the state."""
        return state.learner.params["policy"], state.env_steps < self.start_steps

    def sample(
        self, policy: Layers, random: Bool[Array, ""], inputs: Inputs, memory: Memory, noise: Array
    ) -> tuple[Float[Array, "*batch action"], Memory]:
        """The action that standard normal `noise` leads to: the policy's, or at first a uniformly random one."""
        action, _ = soft_networks.act(policy, inputs.obs, noise)
        return jnp.where(random, 2 * jax.scipy.special.ndtr(noise) - 1, action), memory

    def _collect(
        self, env: Environment, state: SACState, key: Array, fresh: Any, resets: Any
    ) -> tuple[Actors, Float[Array, "time env record"]]:
        """The block's steps. Without `fresh` no episode is begun again."""
        noise = jax.random.normal(key, (self.block_length, self.num_envs, env.action_size))
        actor = self.actor(env, state)

        def step(actors: Actors, x: tuple[Array, Any]) -> tuple[Actors, Array]:
            after, ended, row = rollout.step_all(env, lambda *step: self.sample(*actor, *step), actors, x[0])
            return after if fresh is None else rollout.begin_again(after, ended, fresh(x[1])), row

        return jax.lax.scan(step, state.actors, (noise, resets))

    def _learn(
        self, env: Environment, learner: Learner, replay: Array, seen: Array, state: SACState, key: Array
    ) -> Learner:
        """A round of gradient steps, on batches that are all drawn before the first."""
        updates = self.block // self.steps_per_update
        draws = self._draw(env, replay, seen, key, updates)
        rates = self.rates(state.learning_rate)
        learning = seen > self.start_steps

        def gradient_step(learner: Learner, draw: tuple[Array, Array]) -> tuple[Learner, None]:
            gradient, _ = jax.grad(self._loss, argnums=1, has_aux=True)(
                env, learner.params, learner.targets, draw, state.limit, state.probability
            )
            # Without gradients Adam stands still, but for its count. To choose between learners would copy both.
            gradient = jax.tree.map(lambda g: jnp.where(learning, g, 0.0), gradient)
            step, optimiser = OPTIMISER.update(gradient, learner.optimiser)
            optimiser = optimiser._replace(count=jnp.where(learning, optimiser.count, 0))
            params = {
                name: jax.tree.map(lambda p, u, rate=rates[name]: p - rate * u, part, step[name])
                for name, part in learner.params.items()
            }
            targets = optax.incremental_update(params["critics"], learner.targets, 1 - self.polyak)
            return Learner(params, targets, optimiser), None

        return jax.lax.scan(gradient_step, learner, draws)[0]

    def _draw(self, env: Environment, replay: Array, seen: Array, key: Array, updates: int) -> tuple[Array, Array]:
        """Records and noise for both of the policy's actions."""
        sample_key, noise_key = jax.random.split(key)
        records = replay_buffer.sample(replay, seen, sample_key, (updates, self.batch_size))
        return records, jax.random.normal(noise_key, (updates, 2, self.batch_size, env.action_size))

    def _loss(
        self, env: Environment, params: Params, targets: Layers, draw: tuple[Array, Array], limit: Array, level: Array
    ) -> tuple[Float[Array, ""], Scalars]:
        """The sum of all losses; each reaches the parameters of its own part only."""
        params = params | {name: self.computing(params[name]) for name in ("policy", "critics")}
        batch, fixed = read_records(env, draw[0]), jax.lax.stop_gradient(params)
        temperature = jax.nn.softplus(params["temperature"])
        now_and_next = soft_networks.act(params["policy"], jnp.stack([batch.obs, batch.next_obs]), draw[1])
        action, log_prob = (x[0] for x in now_and_next)
        next_action, next_log_prob = (jax.lax.stop_gradient(x[1]) for x in now_and_next)
        next_values = soft_networks.rate(self.computing(targets), batch.next_obs, next_action)
        values = soft_networks.rate(params["critics"], batch.obs, batch.action)
        rated = soft_networks.rate(fixed["critics"], batch.obs, action)
        soft_value = jnp.min(next_values[:2], axis=0) - jax.nn.softplus(fixed["temperature"]) * next_log_prob
        target = batch.reward + self.discount * batch.follows * soft_value
        entropy = -jnp.mean(log_prob)
        safety, figures = self.safety(env, params, jax.lax.stop_gradient(values), rated, limit, level)
        losses = {
            "value_loss": 0.5 * jnp.mean(jnp.sum(jnp.square(values[:2] - target), axis=0)),
            **self.cost_losses(values, next_values, batch),
            "policy_loss": -jnp.mean(jnp.min(rated[:2], axis=0)) - jax.nn.softplus(fixed["temperature"]) * entropy,
            "temperature_loss": temperature
            * jax.lax.stop_gradient(entropy - self.entropy_per_action * env.action_size),
            **safety,
        }
        figures = {"entropy": entropy, "temperature": temperature, "value": jnp.mean(values[:2]), **figures}
        return jnp.sum(jnp.stack(list(losses.values()))), losses | figures

    def _report(
        self, env: Environment, learner: Learner, replay: Array, seen: Array, state: SACState, key: Array
    ) -> Scalars:
        """The losses on one more batch: reporting them at every gradient step would slow it down."""
        draw = jax.tree.map(lambda x: x[0], self._draw(env, replay, seen, key, 1))
        return self._loss(env, learner.params, learner.targets, draw, state.limit, state.probability)[1]

    def _episodes(self, env: Environment, rows: Float[Array, "time env record"], before: Array) -> Episodes:
        _, _, terminated, truncated, return_, cost = jnp.moveaxis(rows[..., -ROW_EXTRAS:], -1, 0)
        time = before + 1 + jnp.arange(rows.shape[0], dtype=jnp.int32)[:, None]
        steps = jnp.broadcast_to(time * self.num_envs, return_.shape)
        episodes = Episodes(terminated + truncated > 0, steps, return_, cost)
        if env.fixed_length:
            episodes = rollout.rows_with_an_end(episodes, env.horizon, before)
        return jax.tree.map(jnp.ravel, episodes)

    def policy_state(self, state: SACState) -> SoftPolicy:
        params = state.learner.params
        return SoftPolicy(params["policy"], params["critics"], state.limit, state.probability)

    def initial_carry(self, env: Environment) -> Memory:
        """Nothing: the policy has no memory."""
        return NO_MEMORY

    def act(
        self,
        env: Environment,
        policy: SoftPolicy,
        carry: Memory,
        obs: Float[Array, "*batch obs"],
        previous_action: Float[Array, "*batch action"],
        previous_reward: Float[Array, "*batch"],
        previous_cost: Float[Array, "*batch"],
        key: Array,
        deterministic: bool | Bool[Array, ""] = False,
    ) -> tuple[Float[Array, "*batch action"], Memory]:
        """A trained policy's action."""
        noise = jnp.where(deterministic, 0.0, jax.random.normal(key, previous_action.shape))
        return soft_networks.act(policy.policy, obs, noise)[0], carry


OPTIMISER = optax.scale_by_adam()
"""Adam without its learning rate, which is part of the state so that it can differ between lanes."""


def read_records(env: Environment, records: Float[Array, "batch record"]) -> Transition:
    """The records of the rollout, taken apart."""
    size = env.observation_size
    obs, next_obs, action, rest = jnp.split(records, [size, 2 * size, 2 * size + env.action_size], axis=-1)
    reward, cost, terminated, *_ = jnp.moveaxis(rest, -1, 0)
    return Transition(obs, next_obs, action, reward, cost, 1 - terminated)
