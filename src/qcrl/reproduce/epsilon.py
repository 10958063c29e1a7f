"""The appendix's figure of QCPO at probabilities from .5 to .02."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from qcrl.kinds import Json
from qcrl.reproduce.claims import Claim, qcpo_settles, settling_order
from qcrl.reproduce.curves import draw_curves
from qcrl.reproduce.results import Found, only

TITLE = "QCPO at five probabilities"
SOURCES = ("epsilon", "main")
ENVIRONMENTS = ("SimpleButtonEnv-v0", "DynamicEnv-v0")
GRID: Json = {
    "environments": list(ENVIRONMENTS),
    "preset": "authors",
    "limits": [15],
    "probabilities": [0.5, 0.2, 0.1, 0.05, 0.02],
    "seeds": 10,
    "first_seed": 100,
    "steps": 5_000_000,
    "algorithms": [{"name": "qcpo"}],
}


def draw(found: Sequence[Found]) -> Figure:
    return draw_curves(found, ("episode_return", "outage"))


def claims(found: Sequence[Found]) -> list[Claim]:
    about = [each for each in only(found, label="qcpo-authors") if each.environment in ENVIRONMENTS]
    return [
        qcpo_settles(about, 10, "QCPO's outage settles at its target for .5, .2, .1, .05 and .02."),
        settling_order(about, ENVIRONMENTS),
    ]
