"""A grid that trains in seconds, and what the tests compare of its runs."""

import csv
from pathlib import Path

SMALL = {"num_envs": 4, "steps_per_env": 16, "chunk_length": 8, "hidden_sizes": [8], "lstm_size": 0, "minibatches": 1}
GRID = {
    "environments": ["TwoPathEnv-v0"],
    "probabilities": [0.1, 0.2],
    "seeds": 2,
    "steps": 1280,
    "episodes": 50,
    "overrides": SMALL,
    "algorithms": [{"name": "qcpo"}, {"name": "ppo_lag", "probabilities": [0.1]}],
}


def rows(folder: Path) -> list[dict[str, str]]:
    """metrics.csv without what depends on the clock."""
    with open(folder / "metrics.csv", newline="") as file:
        return [{key: value for key, value in row.items() if key != "steps_per_second"} for row in csv.DictReader(file)]
