"""Makes the figure and the table of docs/results.md from the CSV files beside this script.

python results/summarise.py
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

HERE = Path(__file__).parent
ENVIRONMENTS = ("SimpleButtonEnv-v0", "DynamicEnv-v0", "GremlinEnv-v0", "DynamicButtonEnv-v0")
RUNS = (
    ("qcpo-authors", 0.1, "QCPO authors, .1", "#0072B2", "-"),
    ("qcpo-authors", 0.2, "QCPO authors, .2", "#56B4E9", "-"),
    ("qcpo-tuned", 0.1, "QCPO tuned, .1", "#D55E00", "--"),
    ("qcpo-tuned", 0.2, "QCPO tuned, .2", "#E69F00", "--"),
    ("ppo_lag-authors", None, "PPO_Lag", "#009E73", "-."),
)


def read(path: Path) -> np.ndarray:
    return np.genfromtxt(path, delimiter=",", names=True)


def lanes(table: np.ndarray, probability: float | None) -> np.ndarray:
    return table if probability is None else table[np.isclose(table["probability"], probability)]


def by_seed(table: np.ndarray, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Environment steps, and the column as [step, seed]."""
    steps = np.unique(table["env_steps"])
    return steps, np.array([table[column][table["env_steps"] == step] for step in steps])


def figure() -> None:
    fig, axes = plt.subplots(2, len(ENVIRONMENTS), figsize=(15, 6.2), sharex=True)
    shown = {}
    for (upper, lower), environment in zip(axes.T, ENVIRONMENTS):
        upper.set_title(environment)
        for name, probability, label, colour, style in RUNS:
            folder = HERE / "main" / environment / name
            if not folder.exists():
                continue
            table = lanes(read(folder / "metrics.csv"), probability)
            for axis, column in ((upper, "episode_return"), (lower, "outage")):
                steps, values = by_seed(table, column)
                mean, std = values.mean(1), values.std(1)
                (shown[label],) = axis.plot(steps / 1e6, mean, style, color=colour)
                axis.fill_between(steps / 1e6, mean - std, mean + std, color=colour, alpha=0.15, lw=0)
        for target in (0.1, 0.2):
            lower.axhline(target, color="black", lw=0.8, ls=":")
        lower.set(ylim=(0, 0.6), xlabel="million steps per seed")
    axes[0, 0].set_ylabel("episode return")
    axes[1, 0].set_ylabel("outage, last 100 episodes")
    fig.legend(shown.values(), shown.keys(), loc="lower center", ncols=len(shown), frameon=False)
    fig.tight_layout(rect=(0, 0.05, 1, 1))
    fig.savefig(HERE / "main.png", dpi=110)


def rows() -> list[str]:
    lines = [
        "| environment | run | probability | seeds | training: outage | mean cost | return | multiplier | fresh: outage | mean cost | return |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for environment in ENVIRONMENTS:
        for name, probability, *_ in RUNS:
            folder = HERE / "main" / environment / name
            if not folder.exists():
                continue
            table = lanes(read(folder / "metrics.csv"), probability)
            last = table[table["env_steps"] == table["env_steps"].max()]
            cells = [spread(last["outage"], 3), spread(last["episode_cost"]), spread(last["episode_return"])]
            cells.append(f"{last['multiplier'].mean():.1f}")
            if (folder / "evaluation.csv").exists():
                fresh = lanes(read(folder / "evaluation.csv"), probability)
                cells += [spread(fresh["outage"], 3), spread(fresh["mean_cost"]), spread(fresh["mean_return"])]
            else:
                cells += ["missing"] * 3
            judged = "-" if probability is None else probability
            seeds = len(json.loads((folder / "config.json").read_text())["seeds"])
            lines.append(f"| {environment} | {name} | {judged} | {seeds} | " + " | ".join(cells) + " |")
    return lines


def spread(values: np.ndarray, digits: int = 1) -> str:
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


if __name__ == "__main__":
    figure()
    print("\n".join(rows()))
