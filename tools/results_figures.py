"""Draws the two figures of docs/results.md that `qcrl reproduce` does not make, from the tables in results/."""

import csv
from pathlib import Path

from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
TASKS = ("SimpleButtonEnv-v0", "DynamicEnv-v0", "GremlinEnv-v0", "DynamicButtonEnv-v0")
# Colours of Okabe and Ito, and a mark of its own for each.
RUNS = {
    "ppo_lag-authors": ("PPO_Lag", "#0072B2", "o"),
    "qcpo-authors": ("QCPO, authors", "#D55E00", "s"),
    "qcpo-tuned": ("QCPO, tuned", "#009E73", "D"),
    "wcsac-paper": ("WCSAC", "#CC79A7", "^"),
}


def rows(name: str) -> list[dict[str, str]]:
    with open(ROOT / "results" / name, newline="") as file:
        return list(csv.DictReader(file))


def returns() -> Figure:
    """Return against outage of all algorithms asked for .1, a panel for each task."""
    figure = Figure(figsize=(11, 3.2), layout="constrained", dpi=110)
    found = rows("main.csv")
    for axes, task in zip(figure.subplots(1, 4, sharex=True), TASKS):
        for run, (label, colour, mark) in RUNS.items():
            [row] = [
                each
                for each in found
                if (each["environment"], each["run"]) == (task, run) and each["probability"] == "0.1"
            ]
            at = {key: float(row[key]) for key in row if key.startswith("fresh")}
            spread = at["fresh_outage_std"], at["fresh_episode_return_std"]
            place = at["fresh_outage"], at["fresh_episode_return"]
            axes.errorbar(*place, yerr=spread[1], xerr=spread[0], color=colour, marker=mark, label=label, lw=1, ls="")
        axes.axvline(0.1, color="#6b7280", ls=":", lw=1)
        axes.set(title=task.removesuffix("-v0"), xlabel="outage", xlim=(0, 1))
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("return")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def promises() -> Figure:
    """The outage that was found for each promised policy, and its upper bound."""
    figure = Figure(figsize=(9, 3), layout="constrained", dpi=110)
    files = {"DynamicEnv, scale": "DynamicEnv-v0-scale-p0.1.csv", "TwoPathEnv, fast": "TwoPathEnv-v0-fast-p0.1.csv"}
    for axes, (title, file) in zip(figure.subplots(1, 2, sharey=True), files.items()):
        for place, row in enumerate(each for each in rows(f"promise/{file}") if each["kind"] == "call"):
            colour = "#009E73" if row["verdict"] == "certified" else "#D55E00"
            found, bound = int(row["outages"]) / int(row["episodes"]), float(row["upper_bound"])
            axes.plot([place, place], [found, bound], color=colour, lw=2)
            axes.plot(place, found, "o", color=colour)
            axes.plot(place, bound, "_", color=colour, ms=12, mew=2)
        axes.axhline(0.1, color="#6b7280", ls=":", lw=1)
        axes.set(title=title, xlabel="call", xticks=range(10), ylim=(0.06, 0.105))
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("outage")
    return figure


if __name__ == "__main__":
    returns().savefig(IMAGES / "results_returns.png")
    promises().savefig(IMAGES / "results_promises.png")
