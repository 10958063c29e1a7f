"""Shared looks of the figures, and Markdown tables."""

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart with any kind of colour vision.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#777777",
)


def panels(count: int, height: float = 3.6, width: float = 4.4) -> tuple[Figure, list[Axes]]:
    """A row of panels. The figure belongs to no window system."""
    figure = Figure(figsize=(width * count, height), layout="constrained", dpi=110)
    axes = [figure.add_subplot(1, count, i + 1) for i in range(count)]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(alpha=0.25, linewidth=0.6)
        each.set_axisbelow(True)
    return figure, axes


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])
