"""An algorithm from outside the package: PPO that pays for every outage, by a price that follows the recent episodes.

python examples/own_algorithm.py
cd examples && qcrl train own_algorithm:Priced TwoPathEnv-v0 --limit 15 --outage 0.1
"""

from dataclasses import dataclass

import jax.numpy as jnp

import qcrl
from qcrl.algos.advantages import gae
from qcrl.algos.batch import CostSignal
from qcrl.algos.losses import value_loss
from qcrl.algos.ppo import PPO


@dataclass(frozen=True)
class Priced(PPO):
    """Every cost above the limit has a price; the multiplier is that price."""

    hidden_sizes: tuple[int, ...] = (32, 32)
    lstm_size: int = 0
    cost_input: str = "none"
    budget_input: bool = True
    learning_rate: float = 3e-3
    gae_lambda: float = 0.95
    cost_gae_lambda: float = 0.95
    excess_scale: float = 10.0
    """Costs above the limit are divided by this."""

    @property
    def steers_by(self):
        return "outage"

    @property
    def cost_outputs(self):
        return 1

    def read_cost_head(self, outputs):
        return outputs[..., 0]

    def cost_signal(self, env, state, sampled):
        trajectory, now, later, links = sampled
        limit, spent = state.constraints[0].limit, trajectory.inputs.spent[..., 0]
        above = lambda total: jnp.maximum(total - limit, 0.0) / self.excess_scale
        excess = above(spent + trajectory.cost[..., 0]) - above(spent)
        advantage = gae(excess, now, later, links, self.discount, self.cost_gae_lambda)
        return CostSignal(advantage, now + advantage, {"excess": jnp.mean(excess)})

    def cost_loss(self, estimate, targets):
        loss = value_loss(estimate, targets)
        return loss, {"excess_loss": loss}


if __name__ == "__main__":
    own = "own_algorithm:Priced"  # a run must be able to name it, and a script itself has no name
    run = qcrl.train(own, "TwoPathEnv-v0", qcrl.Outage(15, 0.1), steps=600_000, integral_gain=2.0)
    print(qcrl.evaluate(run).pooled[0])
