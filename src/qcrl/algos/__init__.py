"""The algorithms: frozen dataclasses of hyper-parameters with pure `init` and `iterate`."""

from qcrl.algos.multiplier import episode_window
from qcrl.algos.ppo_lag import PPOLag
from qcrl.algos.presets import PRESETS, preset
from qcrl.algos.qcpo import QCPO
from qcrl.algos.state import Metrics, PolicyState, TrainState
from qcrl.rollout import Episodes

ALGORITHMS: dict[str, type] = {"qcpo": QCPO, "ppo_lag": PPOLag}
__all__ = [
    "ALGORITHMS",
    "PRESETS",
    "QCPO",
    "Episodes",
    "Metrics",
    "PPOLag",
    "PolicyState",
    "TrainState",
    "episode_window",
    "preset",
]
