"""The paper's sizes, and grids that are smaller by a scale."""

import math
from types import ModuleType

from qcrl.algos.find import build
from qcrl.kinds import Json, Settings

PAPER_STEPS, PAPER_HOURS = 5_000_000, 9
"""Of one training on the paper's server; the paper says 8 to 10 hours."""
FULL: Json = {
    "preset": "authors",
    "limits": [15],
    "probabilities": [0.1, 0.2],
    "seeds": 10,
    "first_seed": 100,
    "steps": PAPER_STEPS,
}
"""What the grids of most figures have in common."""
SMALL_SCALE = 0.1
"""Below this, the network and the batches are those of the fast preset."""
SIZES = ("hidden_sizes", "lstm_size", "cost_input", "batch_size", "steps_per_update", "replay_size")


def scaled(module: ModuleType, scale: float) -> Json:
    """The figure's grid, smaller."""
    grid: Json = dict(module.GRID)
    entries: list[Json] = [{"name": each} if isinstance(each, str) else dict(each) for each in grid["algorithms"]]
    if scale < 1:
        least = {"steps": 1, "seeds": 3, "episodes": 20} | getattr(module, "LEAST", {})
        full = {"episodes": 1000} | grid
        grid |= {name: max(floor, round(full[name] * scale)) for name, floor in least.items()}
        for entry in entries:
            entry["overrides"] = smaller(entry["name"], (grid | entry)["preset"], scale)
    return {**grid, "algorithms": entries}


def smaller(algorithm: str, preset: str, scale: float) -> Settings:
    """Overrides that fit a small scale: fewer environments, so that there are still many iterations."""
    settings, fast = build(algorithm, preset), build(algorithm, "fast")
    changes: Settings = {}
    if hasattr(settings, "steps_per_env"):
        changes["num_envs"] = max(2, round(settings.num_envs * math.sqrt(scale)))
    if scale < SMALL_SCALE:
        changes |= {name: getattr(fast, name) for name in SIZES if hasattr(settings, name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in changes.items()}
