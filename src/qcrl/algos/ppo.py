"""The PPO core of QCPO and PPO_Lag: one iteration is a rollout, a step of the multiplier, and epochs of gradient steps.

The algorithms differ only in what they do with costs: a head (`cost_outputs`, `read_cost_head`), its advantage and targets
(`cost_signal`), its loss (`cost_loss`), and the statistic that drives the multiplier (`driver`).
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from qcrl import rollout
from qcrl.algos import distributions
from qcrl.algos.actor_critic import ActorCritic
from qcrl.algos.advantages import Links, gae
from qcrl.algos.losses import policy_loss, value_loss
from qcrl.algos.multiplier import DRIVERS, Gains, Multiplier, Steering, Window
from qcrl.algos.state import Metrics, TrainState
from qcrl.algos.summary import all_finite, choose, summary
from qcrl.envs.base import Environment
from qcrl.networks import Inputs, Memory, Normaliser, Params, only_heads
from qcrl.rollout import Actors, Episodes, Trajectory

Scalars = dict[str, Float[Array, ""]]


class CostSignal(NamedTuple):
    """What the costs of a batch say to the policy and to the cost critic."""

    advantage: Float[Array, "time env"]
    targets: Any
    statistics: Scalars


class Batch(NamedTuple):
    """What gradient steps are taken on. Chunks are counted along the second axis of every leaf."""

    memory: Memory
    """Before each chunk; its first axis has length 1."""
    inputs: Inputs
    first: Bool[Array, "time chunk"]
    action: Float[Array, "time chunk action"]
    log_prob: Float[Array, "time chunk"]
    reward_advantage: Float[Array, "time chunk"]
    cost_advantage: Float[Array, "time chunk"]
    value_target: Float[Array, "time chunk"]
    cost_targets: Any


@dataclass(frozen=True)
class PPO(ActorCritic):
    """Training, as pure functions that can be compiled, and vectorised over keys, limits and probabilities."""

    def cost_signal(
        self,
        cost: Float[Array, "time env"],
        estimate: Any,
        next_estimate: Any,
        links: Links,
        probability: Float[Array, ""],
    ) -> CostSignal:
        """Cost advantage and critic targets, from the estimates made while sampling."""
        raise NotImplementedError

    def cost_loss(self, estimate: Any, targets: Any) -> tuple[Float[Array, ""], Scalars]:
        """The cost critic's weighted loss, and its parts by name."""
        raise NotImplementedError

    def init(self, env: Environment, key: Array, limit: Any, probability: Any) -> TrainState:
        """The state before the first iteration."""
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            key = jax.random.key_data(key)
        key, network_key, env_key = jax.random.split(key, 3)
        params, normaliser = self.init_params(env, network_key)
        return TrainState(
            params,
            normaliser,
            self.optimiser.init(params),
            rollout.start(env, env_key, self.num_envs, self.network.initial_memory(self.num_envs)),
            Window.init(self.window),
            Multiplier.init(self.initial_multiplier, self.derivative_delay),
            key,
            iteration=jnp.zeros((), jnp.int32),
            env_steps=jnp.zeros((), jnp.int32),
            limit=jnp.asarray(limit, jnp.float32),
            probability=jnp.asarray(probability, jnp.float32),
            learning_rate=jnp.full((), self.learning_rate, jnp.float32),
            alive=jnp.ones((), bool),
        )

    def iterate(self, env: Environment, state: TrainState) -> tuple[TrainState, Metrics]:
        """One iteration. A state that is not alive, or would not be finite afterwards, stays as it was."""
        with self.precision():
            key, rollout_key = jax.random.split(state.key)
            actor = self.actor(env, state)
            actors, trajectory, episodes = rollout.rollout(
                env,
                lambda *step: self.sample(*actor, *step),
                state.actors,
                rollout_key,
                self.steps_per_env,
                self.chunk_length,
                state.env_steps // self.num_envs,
            )
            return self.learn(state, actors, trajectory, episodes, key)

    def actor(self, env: Environment, state: TrainState) -> tuple[Params, Normaliser]:
        """What `sample` needs of the state."""
        return self.computing(only_heads(state.params, env.action_size)), state.normaliser

    def precision(self) -> AbstractContextManager[Any]:
        """While entered, products run as precisely as asked for."""
        return jax.default_matmul_precision("float32" if self.matmul_precision == "float32" else "tensorfloat32")

    def learn(
        self, before: TrainState, actors: Actors, trajectory: Trajectory, episodes: Episodes, key: Array
    ) -> tuple[TrainState, Metrics]:
        """Learn from the batch that the policy of `before` has sampled."""
        key, shuffle_key = jax.random.split(key)
        window = before.window.add(episodes)
        controller = self._steer(before, window)
        batch, statistics = self._prepare(before, trajectory)
        normaliser = before.normaliser
        if self.normalise_observations:
            start = jax.tree.map(lambda x: x[0], trajectory.memory)
            seen = self.network.seen(trajectory.inputs, trajectory.first, start)
            normaliser = normaliser.update(self.network.observed(seen))
        params, optimiser, losses = self._fit(before, normaliser, controller.value, batch, shuffle_key)
        checked = (params, normaliser, controller, losses, statistics)
        alive = before.alive & all_finite(checked)
        after = before._replace(
            params=params,
            normaliser=normaliser,
            optimiser=optimiser,
            actors=actors,
            window=window,
            controller=controller,
            key=key,
            iteration=before.iteration + 1,
            env_steps=before.env_steps + self.steps_per_iteration,
        )
        after = choose(alive, after, before)._replace(alive=alive)
        episodes = episodes._replace(finished=episodes.finished & alive)
        return after, Metrics(summary(after, self.window) | losses | statistics, episodes)

    def _steer(self, state: TrainState, window: Window) -> Multiplier:
        """One step of the multiplier, once an episode has finished."""
        costs, valid = window.cost, window.recent(self.driver_window)
        statistic, target = DRIVERS[self.driver](costs, valid, state.limit, state.probability, self.cost_scale)
        steering = Steering(statistic, (1 - self.target_margin) * target)
        gains = Gains(
            proportional=self.proportional_gain,
            integral=self.integral_gain,
            derivative=self.derivative_gain,
            smoothing=self.gain_smoothing,
            clip=self.error_clip,
            relative=self.relative_gains,
            power=self.integral_power,
        )
        moved = state.controller.update(steering, gains)
        return choose(window.seen > 0, moved, state.controller)

    def _prepare(self, state: TrainState, trajectory: Trajectory) -> tuple[Batch, Scalars]:
        """Advantages and targets, from estimates by the parameters and observation statistics that sampled the batch."""
        memory = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), trajectory.memory)
        outputs, next_outputs = self._outputs(state, trajectory, memory)
        now, later = self.read(outputs), self.read(next_outputs)
        links = self._links(trajectory)
        reward_advantage, correction = (
            gae(trajectory.reward / self.reward_scale, now.value, later.value, links, self.discount, decay)
            for decay in (self.advantage_decay, self.target_decay)
        )
        signal = self.cost_signal(trajectory.cost / self.cost_scale, now.cost, later.cost, links, state.probability)
        cost_advantage = signal.advantage
        if self.scale_advantages:
            reward_advantage, cost_advantage = (x / (jnp.std(x) + 1e-6) for x in (reward_advantage, cost_advantage))
        columns = (
            trajectory.inputs,
            trajectory.first,
            trajectory.action,
            distributions.log_prob(state.params, self.squash(state.params, now.head), trajectory.action),
            reward_advantage,
            cost_advantage,
            now.value + correction,
            signal.targets,
        )
        return Batch(jax.tree.map(lambda x: x[None], memory), *self._to_chunks(columns)), signal.statistics

    def _outputs(self, state: TrainState, trajectory: Trajectory, memory: Memory) -> tuple[Array, Array]:
        """The network's outputs at every step of the batch and at the one that follows it."""
        params, normaliser = self.computing(state.params), state.normaliser
        inputs, first = self._to_chunks((trajectory.inputs, trajectory.first))
        outputs, memories = self._from_chunks(self.network.sequence(params, normaliser, inputs, first, memory))
        # Mostly those of the next row; but nothing follows the last one, nor an episode that was cut off.
        following = Inputs(trajectory.next_obs, trajectory.action, trajectory.reward, trajectory.cost)
        if self.time_limit == "terminal":
            following, memories = jax.tree.map(lambda x: x[-1:], (following, memories))
        after, _ = self.network.step(params, normaliser, following, memories)
        rows = outputs[1:]
        if self.time_limit == "bootstrap":
            rows = jnp.where(trajectory.truncated[:-1, :, None], after[:-1], rows)
        return outputs, jnp.concatenate([rows, after[-1:]])

    def _links(self, trajectory: Trajectory) -> Links:
        terminal = trajectory.ended if self.time_limit == "terminal" else trajectory.terminated
        continues = ~trajectory.ended
        if self.cut_at_chunks:
            within = jnp.arange(1, self.steps_per_env + 1) % self.chunk_length != 0
            continues = continues & within[:, None]
        return Links(terminal, continues)

    def _fit(
        self, state: TrainState, normaliser: Normaliser, multiplier: Array, batch: Batch, key: Array
    ) -> tuple[Params, Any, Scalars]:
        """All gradient steps of an iteration, and the losses of the last one."""
        if not self.remembers:
            # Without a memory every step is a chunk of its own.
            batch = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), batch)
        trained = state.iteration >= self.warmup_iterations
        rate = jnp.where(trained, state.learning_rate * 0.5 ** (state.iteration / self.learning_rate_halving), 0.0)

        def gradient_step(carry: tuple[Params, Any], chunks: Array | None) -> tuple[tuple[Params, Any], Scalars]:
            params, optimiser = carry
            chosen = batch if chunks is None else jax.tree.map(lambda x: x[:, chunks], batch)
            gradient, scalars = jax.grad(self._loss, has_aux=True)(params, normaliser, chosen, multiplier)
            update, optimiser = self.optimiser.update(gradient, optimiser)
            step = jnp.where(scalars["approx_kl"] <= self.target_kl, rate, 0.0)
            params = jax.tree.map(lambda p, u: p - step * u, params, update)
            return (params, optimiser), scalars

        order = None
        if self.minibatches > 1:
            shuffle = jax.vmap(lambda key: jax.random.permutation(key, self.pieces))
            order = shuffle(jax.random.split(key, self.epochs)).reshape(-1, self.pieces // self.minibatches)
        start = state.params, state.optimiser
        (params, optimiser), scalars = jax.lax.scan(gradient_step, start, order, self.epochs * self.minibatches)
        return params, choose(trained, optimiser, state.optimiser), jax.tree.map(lambda x: x[-1], scalars)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam without its learning rate, which is part of the state so that it can differ between lanes."""
        return optax.chain(optax.clip_by_global_norm(self.max_gradient_norm), optax.scale_by_adam())

    def _loss(
        self, params: Params, normaliser: Normaliser, batch: Batch, multiplier: Array
    ) -> tuple[Float[Array, ""], Scalars]:
        """The sum of all losses; each reaches the shared trunk."""
        memory = jax.tree.map(lambda x: x[0], batch.memory)
        outputs, _ = self.network.sequence(self.computing(params), normaliser, batch.inputs, batch.first, memory)
        now = self.read(outputs)
        head = self.squash(params, now.head)
        log_ratio = distributions.log_prob(params, head, batch.action) - batch.log_prob
        ratio = jnp.exp(log_ratio)
        policy = policy_loss(ratio, batch.reward_advantage, batch.cost_advantage, multiplier, self.clip, self.clipping)
        if self.divide_by_multiplier:
            policy = policy / (1 + multiplier)
        value = value_loss(now.value, batch.value_target)
        cost, cost_losses = self.cost_loss(now.cost, batch.cost_targets)
        scalars = {
            "policy_loss": policy,
            "value_loss": value,
            **cost_losses,
            "approx_kl": jnp.mean(ratio - 1 - log_ratio),
            "clip_fraction": jnp.mean(jnp.abs(ratio - 1) > self.clip),
            **distributions.statistics(params, head),
        }
        return policy + self.value_loss_weight * value + cost, scalars

    def _to_chunks(self, tree: Any) -> Any:
        """[time, env] -> [time in chunk, chunk], for every leaf."""
        split = (-1, self.chunk_length, self.num_envs)
        swap = lambda x: jnp.swapaxes(x.reshape(*split, *x.shape[2:]), 0, 1)
        return jax.tree.map(lambda x: swap(x).reshape(self.chunk_length, -1, *x.shape[2:]), tree)

    def _from_chunks(self, tree: Any) -> Any:
        """[time in chunk, chunk] -> [time, env], for every leaf."""
        split = (self.chunk_length, -1, self.num_envs)
        swap = lambda x: jnp.swapaxes(x.reshape(*split, *x.shape[2:]), 0, 1)
        return jax.tree.map(lambda x: swap(x).reshape(-1, self.num_envs, *x.shape[2:]), tree)
