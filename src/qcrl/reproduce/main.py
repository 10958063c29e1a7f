"""Figure 5 and the appendix's figure of all four environments: QCPO against PPO_Lag and WCSAC."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from qcrl.kinds import Json
from qcrl.reproduce.claims import Claim, Comparison, above, at, between, higher_return, judge, not_above, qcpo_settles
from qcrl.reproduce.curves import draw_curves
from qcrl.reproduce.results import Found, one, only
from qcrl.reproduce.scale import FULL

TITLE = "QCPO, PPO_Lag and WCSAC on four environments"
SOURCES = ("main",)
ENVIRONMENTS = ("SimpleButtonEnv-v0", "DynamicEnv-v0", "GremlinEnv-v0", "DynamicButtonEnv-v0")
GRID: Json = {
    "environments": list(ENVIRONMENTS),
    **FULL,
    "algorithms": [{"name": "qcpo"}, {"name": "ppo_lag", "probabilities": [0.1]}, {"name": "wcsac", "preset": "paper"}],
}


def draw(found: Sequence[Found]) -> Figure:
    return draw_curves(found, ("episode_return", "outage", "episode_cost"))


def claims(found: Sequence[Found]) -> list[Claim]:
    lag = only(found, label="ppo_lag-authors")
    wcsac = only(found, label="wcsac-paper")
    simple = only(wcsac, environment="SimpleButtonEnv-v0")
    return [
        qcpo_settles(found, 8, "QCPO's outage settles at its target, .1 or .2, on every environment."),
        judge("PPO_Lag keeps the mean cost at the limit.", at(lag, "episode_cost", 15.0), 4),
        judge("PPO_Lag's outage is .3 to .35.", between(lag, "outage", 0.3, 0.35), 4),
        judge("WCSAC's outage is at or under its target on SimpleButtonEnv.", not_above(simple), 2),
        judge(
            "WCSAC's outage is over its target on the other three.",
            above([each for each in wcsac if each not in simple]),
            6,
        ),
        judge(
            "PPO_Lag has the highest return on SimpleButtonEnv, DynamicEnv and GremlinEnv.",
            [result for each in ENVIRONMENTS[:3] for result in _highest(found, each)],
            3,
        ),
        judge(
            "On DynamicButtonEnv WCSAC's return is above PPO_Lag's.",
            [
                result
                for each in only(wcsac, environment=ENVIRONMENTS[3])
                for result in higher_return(each, only(lag, environment=ENVIRONMENTS[3]), 2)
            ],
            2,
        ),
        judge(
            "On SimpleButtonEnv QCPO's return is above WCSAC's at the same probability.",
            [
                result
                for each in simple
                for result in higher_return(
                    one(found, environment=each.environment, label="qcpo-authors", probability=each.probability),
                    [each],
                    2,
                )
            ],
            2,
        ),
    ]


def _highest(found: Sequence[Found], environment: str) -> list[Comparison]:
    """Against whatever else of the paper's comparison there is."""
    lag = one(found, environment=environment, label="ppo_lag-authors")
    others = only(found, environment=environment, label="qcpo-authors")
    others += only(found, environment=environment, label="wcsac-paper")
    return higher_return(lag, others, 3)
