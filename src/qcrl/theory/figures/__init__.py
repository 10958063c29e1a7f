"""The figures and tables of docs/theory.md. Each function draws one figure and returns it with its table."""

from collections.abc import Callable

from matplotlib.figure import Figure

from qcrl.theory.figures.budget import draw_budget
from qcrl.theory.figures.distributions import draw_distribution, draw_weight
from qcrl.theory.figures.gradients import draw_gradient
from qcrl.theory.figures.learned import draw_learned
from qcrl.theory.figures.optimum import draw_optimum
from qcrl.theory.figures.results import draw_assumptions, draw_theorems
from qcrl.theory.figures.tails import draw_rate, draw_tails

FIGURES: dict[str, Callable[[], tuple[Figure, str]]] = {
    "distribution": draw_distribution,
    "weight": draw_weight,
    "theorems": draw_theorems,
    "assumptions": draw_assumptions,
    "gradient": draw_gradient,
    "optimum": draw_optimum,
    "learned": draw_learned,
    "budget": draw_budget,
    "rate": draw_rate,
    "tails": draw_tails,
}
