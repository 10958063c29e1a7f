"""Three routes and two costs: the best policy under two constraints is a mixture that a small linear programme gives.

Time and damage of a route are exponentially distributed, so Pr(cost > limit) is exp(-limit / mean). The highway is
fast and rough, the short cut is gentle and slow, the footpath is neither fast to pay nor dangerous.

python examples/three_routes.py
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linprog

import qcrl
from qcrl.envs.base import Step
from qcrl.envs.host.spaces import Actions

REWARD = np.array([1.0, 0.9, 0.5])
MEAN = np.array([[4.0, 20.0], [20.0, 4.0], [4.0, 4.0]])
"""Of time and of damage, on each route."""
LIMIT, PROBABILITY = 10.0, 0.25


class State(NamedTuple):
    key: jax.Array
    route: jax.Array
    """0 before the choice."""


@dataclass(frozen=True)
class ThreeRoutes:
    """Choose a route, then arrive and pay."""

    id = "ThreeRoutes-v0"
    description = "Three routes to the goal, which take time and do damage."
    observation_size, action_size, horizon = 4, 3, 2
    fixed_length = discrete = timed = True
    costs = ("time", "damage")
    actions = Actions(discrete=True)

    def reset(self, key):
        state = State(key, jnp.zeros((), jnp.int32))
        return state, jax.nn.one_hot(state.route, 4)

    def step(self, state, action):
        arrived = state.route > 0
        route = jnp.where(arrived, state.route, 1 + jnp.argmax(action))
        cost = jnp.asarray(MEAN, jnp.float32)[route - 1] * jax.random.exponential(state.key, (2,))
        step = Step(
            obs=jax.nn.one_hot(route, 4),
            reward=jnp.where(arrived, jnp.asarray(REWARD, jnp.float32)[route - 1], 0.0),
            cost=jnp.where(arrived, cost, 0.0),
            terminated=arrived,
            truncated=jnp.zeros((), bool),
        )
        return State(state.key, route), step


def measured(constraint):
    """What the constraint bounds, for each route alone."""
    mean = MEAN[:, ThreeRoutes.costs.index(constraint.cost)]
    return np.exp(-constraint.limit / mean) if isinstance(constraint, qcrl.Outage) else mean


def best_shares(*constraints):
    """How often the best policy takes each route."""
    rows, bounds = [measured(each) for each in constraints], [each.bound for each in constraints]
    return linprog(-REWARD, A_ub=rows, b_ub=bounds, A_eq=np.ones((1, 3)), b_eq=[1.0]).x


def shares(policy):
    """How often a trained policy takes each route, read off its network."""
    algorithm, env, actor = policy.algorithm, policy.env, policy.state
    inputs = policy.inputs(np.eye(4, dtype=np.float32)[0], policy.initial())
    seen = algorithm.see(env, actor.constraints, jax.tree.map(jnp.asarray, inputs))
    outputs, _ = algorithm.network(env).step(actor.params, actor.normaliser, seen, algorithm.initial_memory(env))
    return np.asarray(jax.nn.softmax(algorithm.read(outputs, actor.constraints).head))


SETTINGS = dict(
    # 512 whole episodes an iteration, and a network to match four states.
    num_envs=512,
    steps_per_env=2,
    chunk_length=2,
    hidden_sizes=(16,),
    lstm_size=0,
    cost_input="none",
    discount=1.0,
    learning_rate=3e-3,
    learning_rate_halving=150.0,
    learning_rate_end=500.0,
    epochs=4,
    minibatches=1,
    clip=0.1,
    target_kl=0.03,
    # The best policy is a mixture, so that an integral alone swings around it.
    relative_gains=True,
    initial_multiplier=0.3,
    integral_gain=0.1,
    integral_power=0.5,
    proportional_gain=1.0,
    gain_smoothing=0.5,
    error_clip=1.0,
    target_margin=0.0,
    window=2048,
    driver_window=2048,
)

OWN = {
    "outage_ppo": dict(outage_scale=1.0, out_of_phase=False, separate_critics=False),
    "qcpo": dict(driver="outage", kappa=0.1, cost_gae_lambda=0.0, integral_gain=0.4, proportional_gain=4.0),
    "ppo_lag": dict(cost_gae_lambda=0.95),
}
BOTH = qcrl.Outage(LIMIT, PROBABILITY, cost="time") & qcrl.Outage(LIMIT, PROBABILITY, cost="damage")


def train(algo="outage_ppo", constraint=BOTH, iterations=500, **options):
    return qcrl.train(algo, ThreeRoutes(), constraint, 1024 * iterations, **(SETTINGS | OWN[algo] | options))


if __name__ == "__main__":
    run = train()
    both = run.lanes[0].constraints
    print("best shares", best_shares(*both).round(3), "learned", shares(run.policy()).round(3))
