"""The appendix's figure of WCSAC with a Weibull instead of a Gaussian tail, beside WCSAC and QCPO."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from qcrl.kinds import Json
from qcrl.reproduce.claims import Claim, above, judge, not_above, qcpo_settles
from qcrl.reproduce.curves import draw_curves
from qcrl.reproduce.results import Found, only
from qcrl.reproduce.scale import FULL

TITLE = "WCSAC with a Weibull tail, with a Gaussian tail, and QCPO"
SOURCES = ("weibull", "main")
GRID: Json = {
    "environments": ["DynamicEnv-v0"],
    **FULL,
    "algorithms": [{"name": "wcsac", "preset": "paper"}, {"name": "wcsac_weibull", "preset": "paper"}, "qcpo"],
}


def draw(found: Sequence[Found]) -> Figure:
    return draw_curves(found, ("episode_return", "outage", "episode_cost"))


def claims(found: Sequence[Found]) -> list[Claim]:
    about = only(found, environment="DynamicEnv-v0")
    return [
        judge(
            "WCSAC with a Weibull tail meets the constraint on DynamicEnv.",
            not_above(only(about, label="wcsac_weibull-paper")),
            2,
        ),
        judge("With a Gaussian tail it does not.", above(only(about, label="wcsac-paper")), 2),
        qcpo_settles(about, 2, "QCPO's outage settles at its target."),
    ]
