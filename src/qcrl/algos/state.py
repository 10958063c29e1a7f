"""What an on-policy algorithm carries from iteration to iteration, hands out, and reports."""

from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int

from qcrl.algos.multiplier import Multiplier, Window
from qcrl.networks import Normaliser, Params
from qcrl.rollout import Actors, Episodes


class TrainState(NamedTuple):
    """All that changes during training, as arrays."""

    params: Params
    normaliser: Normaliser
    optimiser: Any
    actors: Actors
    window: Window
    controller: Multiplier
    key: Array
    iteration: Int[Array, ""]
    env_steps: Int[Array, ""]
    limit: Float[Array, ""]
    probability: Float[Array, ""]
    learning_rate: Float[Array, ""]
    alive: Bool[Array, ""]
    """False once a loss or a parameter was not finite; everything else then stays as it was before."""

    @property
    def multiplier(self) -> Float[Array, ""]:
        return self.controller.value


class PolicyState(NamedTuple):
    """All that acting and cost estimates need."""

    params: Params
    normaliser: Normaliser
    limit: Float[Array, ""]
    probability: Float[Array, ""]


class Metrics(NamedTuple):
    """What an iteration reports."""

    scalars: dict[str, Float[Array, ""]]
    episodes: Episodes
