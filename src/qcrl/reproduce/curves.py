"""Learning curves of thin results, drawn as those of runs are."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from qcrl.reproduce.results import Found
from qcrl.runs.folder import label
from qcrl.show.curves import Curves
from qcrl.show.figures import figure


def draw_curves(found: Sequence[Found], rows: Sequence[str]) -> Figure:
    """One column of panels per environment. An algorithm that does not train for an outage shows none in its name."""
    curves = [
        Curves(_name(each), each.environment, each.probability, each.limit, str(each.folder), each.training)
        for each in found
    ]
    return figure(curves, rows)


def _name(each: Found) -> str:
    asked = "" if each.config["algorithm"]["name"] == "ppo_lag" else f", p = {each.probability:g}"
    return f"{label(each.config)}{asked}"
