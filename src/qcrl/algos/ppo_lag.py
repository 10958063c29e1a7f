"""PPO_Lag: PPO whose cost head estimates the mean cost to go, constrained at its mean. The baseline for the expectation."""

from dataclasses import dataclass

from jaxtyping import Array, Float

from qcrl.algos.advantages import Links, gae
from qcrl.algos.losses import value_loss
from qcrl.algos.ppo import PPO, CostSignal


@dataclass(frozen=True)
class PPOLag(PPO):
    """Maximise return subject to E[episode cost] <= limit; the probability is only reported."""

    driver: str = "mean"
    """Statistic that drives the multiplier: mean, quantile or outage."""

    @property
    def cost_outputs(self) -> int:
        return 1

    def read_cost_head(self, outputs: Float[Array, "*batch 1"]) -> Float[Array, "*batch"]:
        return outputs[..., 0]

    def unscale(self, estimate: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        return estimate * self.cost_scale

    def cost_signal(
        self,
        cost: Float[Array, "time env"],
        estimate: Float[Array, "time env"],
        next_estimate: Float[Array, "time env"],
        links: Links,
        probability: Float[Array, ""],
    ) -> CostSignal:
        advantage = gae(cost, estimate, next_estimate, links, self.discount, self.cost_advantage_decay)
        returns = estimate + gae(cost, estimate, next_estimate, links, self.discount, self.target_decay)
        return CostSignal(advantage, returns, {})

    def cost_loss(
        self, estimate: Float[Array, "*batch"], targets: Float[Array, "*batch"]
    ) -> tuple[Float[Array, ""], dict[str, Array]]:
        loss = value_loss(estimate, targets)
        return self.cost_mean_loss_weight * loss, {"cost_mean_loss": loss}
