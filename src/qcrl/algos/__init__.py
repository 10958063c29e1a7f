"""The algorithms: frozen dataclasses of hyper-parameters with pure `init` and `iterate`."""

from qcrl.algos.cvar_pg import CVaRPG
from qcrl.algos.multiplier import episode_window
from qcrl.algos.ppo_lag import PPOLag
from qcrl.algos.presets import PRESETS, preset
from qcrl.algos.qcpo import QCPO
from qcrl.algos.state import Metrics, PolicyState, TrainState
from qcrl.algos.wcsac import WCSAC, WCSACWeibull
from qcrl.rollout import Episodes

ALGORITHMS: dict[str, type] = {
    "qcpo": QCPO,
    "ppo_lag": PPOLag,
    "wcsac": WCSAC,
    "wcsac_weibull": WCSACWeibull,
    "cvar_pg": CVaRPG,
}
__all__ = [
    "ALGORITHMS",
    "PRESETS",
    "QCPO",
    "WCSAC",
    "CVaRPG",
    "Episodes",
    "Metrics",
    "PPOLag",
    "PolicyState",
    "TrainState",
    "WCSACWeibull",
    "episode_window",
    "preset",
]
