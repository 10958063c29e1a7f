"""The PPO core of QCPO and PPO_Lag: one iteration is a rollout, a step of the multiplier, and epochs of gradient steps.

The algorithms differ only in what they do with costs: a head (`cost_outputs`, `read_cost_head`), its advantage and
targets (`cost_signal`), its loss (`cost_loss`), and the statistic that drives the multiplier (`steers_by`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from qcrl.algos.actor_critic import ActorCritic, PPOLearner
from qcrl.algos.advantages import Links, gae
from qcrl.algos.algorithm import raw_key
from qcrl.algos.batch import Batch, CostSignal, Sampled, shuffled
from qcrl.algos.losses import normalised, policy_loss, value_loss
from qcrl.algos.multiplier import Gains, Multiplier, Weights, named
from qcrl.algos.scales import Scale, Scales
from qcrl.constraints import Constraint, Steering, Unit
from qcrl.envs.base import Described, choices_of, mask_of
from qcrl.kinds import Tree
from qcrl.nets import distributions
from qcrl.nets.network import Memory, Network, Normaliser, Params
from qcrl.ranges import end
from qcrl.sampling.learner import Scalars
from qcrl.sampling.record import Experience, State, Trajectory, choose, mean_of, read_trajectory, side_by_side

MUCH_SPENT = 0.5
"""Where episodes spend so much of their limit, or more, rewards are looked ahead for by `budget_discount`."""


@dataclass(frozen=True)
class PPO(ActorCritic):
    """Training, as pure functions that can be compiled, and vectorised over keys and the numbers of constraints."""

    def cost_signal(self, env: Described, state: State, sampled: Sampled) -> CostSignal:
        """Cost advantage and critic targets."""
        raise NotImplementedError

    def cost_loss(self, estimate: Tree, targets: Tree) -> tuple[Float[Array, ""], Scalars]:
        """The cost critic's weighted loss, and its parts by name."""
        raise NotImplementedError

    def critic_of(self, constraint: Constraint) -> "PPO":
        return self

    def scaled_cost(self, env: Described, state: State, trajectory: Trajectory) -> Float[Array, "time env"]:
        """The cost that the constraint is about, in the learner's unit."""
        kind = env.costs.index(state.constraints[0].cost)
        return trajectory.cost[..., kind] / self.unit(self.cost_unit(state.learner), state.constraints)

    @property
    def steers_by(self) -> str:
        """Which of the constraint's statistics drives the multiplier."""
        return self.trains_under.statistics[0]

    def steering_window(self, state: State) -> Int[Array, ""] | int:
        """How many of the most recent episodes the multiplier is steered by."""
        return self.driver_window

    def steering(self, env: Described, state: State) -> Steering:
        """The statistic of the most recent episodes that the multiplier is steered by, and what it is steered to."""
        constraint, valid = state.constraints[0], state.window.recent(self.steering_window(state))
        unit = self.unit(self.cost_unit(state.learner), state.constraints)
        statistic, target = constraint.steer(self.steers_by, state.costs_of(env, constraint), valid, unit)
        return Steering(statistic, (1 - self.target_margin) * target)

    def init(self, env: Described, key: Array, constraints: Sequence[Constraint]) -> State:
        key, network_key, env_key = jax.random.split(raw_key(key), 3)
        params, normaliser = self.init_params(env, network_key, constraints)
        first, *further = map(self.first_multiplier, constraints)
        fresh = lambda scale: Scale.init(self.num_envs) if scale == "auto" else ()
        scales = Scales(fresh(self.reward_scale), fresh(self.cost_scale))
        learner = PPOLearner(params, normaliser, self.optimiser.init(params), first, scales, tuple(further))
        return self.start(env, learner, key, env_key, constraints)

    def first_multiplier(self, constraint: Constraint) -> Multiplier:
        """Before the first iteration."""
        return Multiplier.init(self.initial_multiplier)

    def memory_interval(self, env: Described) -> int:
        return self.chunk_length

    def multiplier(self, learner: PPOLearner) -> Float[Array, ""]:
        return learner.multiplier.value

    def multipliers(self, learner: PPOLearner) -> tuple[Float[Array, ""], ...]:
        return tuple(each.value for each in learner.multipliers)

    def learn(self, env: Described, state: State, experience: Experience) -> tuple[State, Scalars]:
        """One step of the multiplier, then gradient steps on advantages and targets."""
        key, shuffle_key = jax.random.split(state.key)
        trajectory = read_trajectory(env, experience)
        discount = self.reward_discount(env, state)
        before: PPOLearner = state.learner._replace(scales=self._measure(env, state, trajectory, discount))
        state = state._replace(learner=before)
        working = self.working(state)
        trajectory = trajectory._replace(inputs=self.see(env, working.constraints, trajectory.inputs))
        multipliers = self._steer(env, state)
        steered = before._replace(multiplier=multipliers[0], further=multipliers[1:])
        normaliser = before.normaliser
        if self.normalise_observations:
            network = self.network(env)
            start = jax.tree.map(lambda x: x[0], trajectory.memory)
            seen = network.seen(trajectory.inputs, trajectory.first, start)
            normaliser = normaliser.update(network.observed(seen), network.images)
            normaliser = self.hold(env, state.constraints, normaliser)
        with jax.named_scope("advantages"):
            batch, statistics = self._prepare(env, working, trajectory, normaliser, discount)
        with jax.named_scope("update"):
            params, optimiser, losses = self._fit(env, working, self.multipliers(steered), batch, shuffle_key)
        learner = steered._replace(params=params, normaliser=normaliser, optimiser=optimiser)
        return state._replace(learner=learner, key=key), losses | statistics

    def _measure(self, env: Described, state: State, trajectory: Trajectory, discount: Unit) -> Scales:
        """The scales that follow the task, this batch included."""
        reward, cost = state.learner.scales
        if self.reward_scale == "auto":
            reward = reward.update(trajectory.reward, trajectory.first, discount)
        if self.cost_scale == "auto":
            kind = env.costs.index(state.constraints[0].cost)
            cost = cost.update(trajectory.cost[..., kind], trajectory.first, self.discount)
        return Scales(reward, cost)

    def _views(self, state: State) -> list[tuple["PPO", State]]:
        """For each constraint the algorithm that serves it, and the state with that constraint in the first place."""
        if len(state.constraints) == 1:
            return [(self.critic_of(state.constraints[0]), state)]
        views = []
        for place, own in enumerate(state.constraints):
            ordered = (own, *state.constraints[:place], *state.constraints[place + 1 :])
            share = state.probability if own.share is None else jnp.asarray(own.share)
            views.append((self.critic_of(own), state._replace(constraints=ordered, probability=share)))
        return views

    def _steer(self, env: Described, state: State) -> tuple[Multiplier, ...]:
        """One step of every multiplier, once an episode has finished."""
        iterations = self.steps_per_iteration / self.gain_steps if self.gain_steps else 1
        gains = Gains(
            proportional=self.proportional_gain,
            integral=self.integral_gain * iterations,
            smoothing=self.gain_smoothing**iterations,
            clip=self.error_clip,
            relative=self.relative_gains,
            power=self.integral_power,
            least=self.least_multiplier,
        )
        moved = []
        for before, (critic, view) in zip(state.learner.multipliers, self._views(state)):
            after = before.update(critic.steering(env, view), gains)
            moved.append(choose(state.window.seen > 0, after, before))
        return tuple(moved)

    def reward_discount(self, env: Described, state: State) -> Unit:
        """How far rewards are looked ahead for: what is spent of a limit now may be missed long after."""
        if self.budget_discount <= self.discount:
            return self.discount
        recent, spent = state.window.recent(self.driver_window), jnp.zeros(())
        for each in state.constraints:
            mean = mean_of(state.costs_of(env, each), recent)
            spent = jnp.maximum(spent, mean / jnp.maximum(MUCH_SPENT * end(each.limit, 0), jnp.maximum(mean, 1e-9)))
        return 1 - (1 - self.discount) ** (1 - spent) * (1 - self.budget_discount) ** spent

    def _prepare(
        self, env: Described, state: State, trajectory: Trajectory, normaliser: Normaliser, discount: Unit
    ) -> tuple[Batch, Scalars]:
        """Advantages and targets, from estimates by the parameters and statistics that sampled the batch.

        Gradient steps see it through the `normaliser`.
        """
        params = state.learner.params
        memory = jax.tree.map(lambda x: x.reshape(-1, x.shape[-1]), trajectory.memory)
        outputs, next_outputs = self._outputs(env, state, trajectory, memory)
        now, later = (self.read(each, state.constraints) for each in (outputs, next_outputs))
        links = self._links(trajectory)
        unit = state.learner.scales.reward.unit if self.reward_scale == "auto" else self.reward_scale
        reward_advantage, correction = (
            gae(trajectory.reward / unit, now.value, later.value, links, discount, decay)
            for decay in (self.gae_lambda, self.target_lambda)
        )
        mask = mask_of(env, trajectory.inputs.obs)
        head = distributions.forbid(self.squash(params, now.head), mask)
        signals = []
        for (critic, view), before, after in zip(self._views(state), now.costs, later.costs):
            own = links if critic is self else critic._links(trajectory)
            signals.append(critic.cost_signal(env, view, Sampled(trajectory, before, after, own)))
        for importance in (signal.importance for signal in signals if not isinstance(signal.importance, tuple)):
            reward_advantage = reward_advantage * importance
        columns = (
            trajectory.action,
            distributions.log_prob(params, head, trajectory.action, choices_of(env)),
            reward_advantage,
            tuple(signal.advantage for signal in signals),
            now.value + correction,
            tuple(signal.targets for signal in signals),
            mask,
        )
        inputs, first, *columns = self._to_chunks((trajectory.inputs, trajectory.first, *columns))
        seen = self.network(env).see(normaliser, inputs, first, memory)
        statistics = named(state.constraints, [signal.statistics for signal in signals])
        return Batch(jax.tree.map(lambda x: x[None], memory), seen, first, *columns), statistics

    def _outputs(
        self, env: Described, state: State, trajectory: Trajectory, memory: Memory
    ) -> tuple[Float[Array, "time env outputs"], Float[Array, "time env outputs"]]:
        """The network's outputs at every step of the batch and at the one that follows it."""
        network, params, normaliser = self.network(env), self.computing(state.learner.params), state.learner.normaliser
        inputs, first = self._to_chunks((trajectory.inputs, trajectory.first))
        outputs, memories = self._from_chunks(network.sequence(params, normaliser, inputs, first, memory))
        # Mostly those of the next row; but nothing follows the last one, nor an episode that was cut off.
        following = trajectory.inputs.after(trajectory.next_obs, trajectory.action, trajectory.reward, trajectory.cost)
        if self.time_limit == "terminal":
            following, memories = jax.tree.map(lambda x: x[-1:], (following, memories))
        after, _ = network.step(params, normaliser, self.see(env, state.constraints, following), memories)
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
        self, env: Described, state: State, weights: Weights, batch: Batch, key: Array
    ) -> tuple[Params, Tree, Scalars]:
        """All gradient steps of an iteration, and the losses of the last one."""
        if not self.remembers:
            # Without a memory every step is a chunk of its own.
            batch = jax.tree.map(lambda x: x.reshape(1, -1, *x.shape[2:]), batch)
        network = self.network(env)
        trained = state.iteration >= self.warmup_iterations
        rate = jnp.where(trained, state.learning_rate * self.learning_rate_share(state.iteration), 0.0)
        # All but what products read lies in one array, so that a minibatch is gathered at once.
        table, restore = side_by_side(batch[2:])
        source = batch.memory, batch.seen, table

        def gradient_step(carry: tuple[Params, Tree], chunks: Array | None) -> tuple[tuple[Params, Tree], Scalars]:
            params, optimiser = carry
            chosen = lambda x: x if chunks is None else x.at[:, chunks].get(mode="promise_in_bounds")
            memory, seen, rows = jax.tree.map(chosen, source)
            given = network, Batch(memory, seen, *restore(rows)), weights, state.constraints
            gradient, scalars = jax.grad(self._loss, has_aux=True)(params, *given)
            update, optimiser = self.optimiser.update(gradient, optimiser)
            step = jnp.where(scalars["approx_kl"] <= self.target_kl, rate, 0.0)
            params = jax.tree.map(lambda p, u: p - step * u, params, update)
            return (params, optimiser), scalars

        order = None
        if self.minibatches > 1:
            order = shuffled(key, self.epochs, self.pieces).reshape(-1, self.pieces // self.minibatches)
        start = state.learner.params, state.learner.optimiser
        (params, optimiser), scalars = jax.lax.scan(gradient_step, start, order, self.epochs * self.minibatches)
        return params, choose(trained, optimiser, state.learner.optimiser), jax.tree.map(lambda x: x[-1], scalars)

    def learning_rate_share(self, iteration: Int[Array, ""]) -> Float[Array, ""]:
        """What is left of the learning rate."""
        halved = 0.5 ** (iteration / self.learning_rate_halving)
        left = (1 - iteration / self.learning_rate_end) / (1 - self.learning_rate_flat)
        return halved * jnp.clip(left, 0.01, 1.0)

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """Adam without its learning rate, which is part of the state so that it can differ between lanes."""
        return optax.chain(optax.clip_by_global_norm(self.max_gradient_norm), optax.scale_by_adam())

    def _loss(
        self, params: Params, network: Network, batch: Batch, weights: Weights, constraints: tuple[Constraint, ...]
    ) -> tuple[Float[Array, ""], Scalars]:
        """The sum of all losses; each reaches the shared trunk."""
        memory = jax.tree.map(lambda x: x[0], batch.memory)
        outputs, _ = network.run(self.computing(params), batch.seen, batch.first, memory)
        now = self.read(outputs, constraints)
        head = distributions.forbid(self.squash(params, now.head), batch.mask)
        log_ratio = distributions.log_prob(params, head, batch.action, network.choices) - batch.log_prob
        ratio = jnp.exp(log_ratio)
        reward, costs, kept = batch.reward_advantage, batch.cost_advantages, weights
        if self.normalise_advantages:
            reward, costs, kept = normalised(reward, costs, weights), (), ()
        policy = policy_loss(ratio, reward, costs, kept, self.clip, self.clipping)
        if self.divide_by_multiplier:
            policy = policy / reduce(add, weights, 1)
        value = value_loss(now.value, batch.value_target)
        critics = zip(map(self.critic_of, constraints), now.costs, batch.cost_targets)
        losses, cost_losses = zip(*(critic.cost_loss(estimate, targets) for critic, estimate, targets in critics))
        scalars = {
            "policy_loss": policy,
            "value_loss": value,
            **named(constraints, cost_losses),
            "approx_kl": jnp.mean(ratio - 1 - log_ratio),
            "clip_fraction": jnp.mean(jnp.abs(ratio - 1) > self.clip),
            **distributions.statistics(params, head, network.choices),
        }
        return reduce(add, losses, policy + self.value_loss_weight * value), scalars

    def _to_chunks(self, tree: Tree) -> Tree:
        """[time, env] -> [time in chunk, chunk], for every leaf."""
        split = (-1, self.chunk_length, self.num_envs)
        swap = lambda x: jnp.swapaxes(x.reshape(*split, *x.shape[2:]), 0, 1)
        return jax.tree.map(lambda x: swap(x).reshape(self.chunk_length, -1, *x.shape[2:]), tree)

    def _from_chunks(self, tree: Tree) -> Tree:
        """[time in chunk, chunk] -> [time, env], for every leaf."""
        split = (self.chunk_length, -1, self.num_envs)
        swap = lambda x: jnp.swapaxes(x.reshape(*split, *x.shape[2:]), 0, 1)
        return jax.tree.map(lambda x: swap(x).reshape(-1, self.num_envs, *x.shape[2:]), tree)
