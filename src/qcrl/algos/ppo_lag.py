"""PPO_Lag: PPO whose cost head estimates the mean cost to go, constrained at its mean."""

from dataclasses import dataclass, fields, replace
from typing import Self

from jaxtyping import Array, Float

from qcrl.algos.advantages import gae
from qcrl.algos.batch import CostSignal, Sampled
from qcrl.algos.losses import value_loss
from qcrl.algos.ppo import PPO
from qcrl.algos.presets import AS_RELEASED, HOST, SCALE, SCALE_STEPS, SMALL, TUNED
from qcrl.algos.settings import PPOSettings
from qcrl.constraints import Mean
from qcrl.envs.base import Described
from qcrl.kinds import Settings
from qcrl.sampling.learner import Scalars
from qcrl.sampling.record import State


@dataclass(frozen=True)
class PPOLag(PPO):
    """Maximise return subject to E[episode cost] <= limit, for any number of costs; no probability is steered."""

    name, label, trains_under, several = "ppo_lag", "PPO_Lag", Mean, True

    cost_mean_loss_weight: float = 1.0
    """Weight of the loss of the mean cost estimate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("be at least 0", lambda x: x >= 0, "cost_mean_loss_weight")

    @property
    def cost_outputs(self) -> int:
        return 1

    def read_cost_head(self, outputs: Float[Array, "*batch 1"]) -> Float[Array, "*batch"]:
        return outputs[..., 0]

    def cost_signal(self, env: Described, state: State, sampled: Sampled) -> CostSignal:
        trajectory, now, later, links = sampled
        cost = self.scaled_cost(env, state, trajectory)
        advantage = gae(cost, now, later, links, self.discount, self.cost_gae_lambda)
        returns = now + gae(cost, now, later, links, self.discount, self.cost_target_lambda)
        return CostSignal(advantage, returns, {})

    def cost_loss(
        self, estimate: Float[Array, "*batch"], targets: Float[Array, "*batch"]
    ) -> tuple[Float[Array, ""], Scalars]:
        loss = value_loss(estimate, targets)
        return self.cost_mean_loss_weight * loss, {"cost_mean_loss": loss}

    @classmethod
    def like(cls, algorithm: PPOSettings) -> Self:
        """With the settings of another algorithm on the PPO core: what serves its mean constraints."""
        return cls(**{field.name: getattr(algorithm, field.name) for field in fields(PPOSettings)})


paper = PPOLag()
authors = replace(paper, **AS_RELEASED, cost_mean_loss_weight=0.5, integral_gain=1.0, driver_window=12)
tuned = replace(authors, late_cost=False, integral_gain=0.1, driver_window=100)
fast = replace(tuned, **SMALL)
# The mean is steered to the limit itself, in steps that do not wind up while costs are many times as high.
AT_LIMIT: Settings = dict(target_margin=0.0, integral_gain=0.05, proportional_gain=0.3, error_clip=1.0)
scale = replace(authors, **TUNED | AT_LIMIT | SCALE)
host = PPOLag(**HOST)
PPOLag.presets = {"paper": paper, "authors": authors, "tuned": tuned, "fast": fast, "scale": scale, "host": host}
PPOLag.lengths = dict.fromkeys(("paper", "authors", "tuned"), 5_000_000) | {"scale": SCALE_STEPS}
