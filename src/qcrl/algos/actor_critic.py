"""The actor-critic of QCPO and PPO_Lag: what the network's outputs mean, acting, and estimating costs."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from qcrl.algos import distributions
from qcrl.algos.settings import Settings
from qcrl.algos.state import PolicyState, TrainState
from qcrl.envs.base import Environment
from qcrl.networks import Inputs, Memory, Network, Normaliser, Params, cast_kernels, only_heads


class Estimate(NamedTuple):
    """The network's outputs, read: the policy's head and both critics."""

    head: Float[Array, "*batch action"]
    """The mean action, or the logits of discrete ones."""
    value: Float[Array, "*batch"]
    cost: Any


@dataclass(frozen=True)
class ActorCritic(Settings):
    """Hyper-parameters, and the pure functions that acting needs. The environment is a static argument."""

    @property
    def cost_outputs(self) -> int:
        """Number of the network's outputs that speak about costs."""
        raise NotImplementedError

    def read_cost_head(self, outputs: Float[Array, "*batch outputs"]) -> Any:
        """The cost critic's estimate of the discounted cost to go, in scaled costs."""
        raise NotImplementedError

    def unscale(self, estimate: Any) -> Any:
        """The same estimate in the task's own costs."""
        raise NotImplementedError

    @property
    def network(self) -> Network:
        clip = self.observation_clip if self.normalise_observations else math.inf
        return Network(self.hidden_sizes, self.lstm_size, self.skip, self.cost_input, clip, self.late_cost)

    def init_params(self, env: Environment, key: Array) -> tuple[Params, Normaliser]:
        outputs = env.action_size + 1 + self.cost_outputs
        params, normaliser = self.network.init(key, env.observation_size, env.action_size, outputs)
        if not getattr(env, "discrete", False):
            params |= {"log_std": jnp.full(env.action_size, self.initial_log_std, jnp.float32)}
        return params, normaliser

    def computing(self, params: Params) -> Params:
        """Parameters in the type that products run in."""
        return cast_kernels(params, jnp.bfloat16 if self.matmul_precision == "bfloat16" else jnp.float32)

    def sample(
        self,
        params: Params,
        normaliser: Normaliser,
        inputs: Inputs,
        memory: Memory,
        noise: Float[Array, "*batch action"] | float,
    ) -> tuple[Float[Array, "*batch action"], Memory]:
        """The action that standard normal `noise` leads to, unbounded as environments clip it, and the next memory."""
        outputs, memory = self.network.step(params, normaliser, inputs, memory)
        return distributions.draw(params, self.squash(params, outputs), noise), memory

    def read(self, outputs: Float[Array, "*batch outputs"]) -> Estimate:
        actions = outputs.shape[-1] - 1 - self.cost_outputs
        head, value, cost = jnp.split(outputs, [actions, actions + 1], axis=-1)
        return Estimate(head, value[..., 0], self.read_cost_head(cost))

    def squash(self, params: Params, head: Float[Array, "*batch action"]) -> Float[Array, "*batch action"]:
        """The mean action from the policy's head; logits stay as they are."""
        return jnp.tanh(head) if self.tanh_mean and "log_std" in params else head

    def policy_state(self, state: TrainState) -> PolicyState:
        return PolicyState(state.params, state.normaliser, state.limit, state.probability)

    def initial_carry(self, env: Environment) -> Memory:
        """The memory at the start of an episode."""
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
        """A trained policy's action, and the memory for its next step."""
        inputs = Inputs(obs, previous_action, previous_reward, previous_cost)
        noise = jnp.where(deterministic, 0.0, jax.random.normal(key, previous_action.shape))
        actor = only_heads(policy.params, env.action_size)
        return self.sample(actor, policy.normaliser, inputs, carry, noise)

    def critic(
        self,
        env: Environment,
        policy: PolicyState,
        carry: Memory,
        obs: Float[Array, "*batch obs"],
        previous_action: Float[Array, "*batch action"],
        previous_reward: Float[Array, "*batch"],
        previous_cost: Float[Array, "*batch"],
    ) -> Any:
        """What the cost critic expects of the discounted cost to go: its mean, or for QCPO a CostDistribution."""
        inputs = Inputs(obs, previous_action, previous_reward, previous_cost)
        outputs, _ = self.network.step(policy.params, policy.normaliser, inputs, carry)
        return self.unscale(self.read(outputs).cost)
