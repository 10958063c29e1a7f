"""Draws the pictures of docs/architecture.md: the rooms, from the contract in pyproject.toml, and the way of a step."""

import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
WIDTH, ROW, GAP = 860, 34, 6
ABOUT = {
    "cli": "commands and their options",
    "bench": "measurements",
    "reproduce": "the paper's figures",
    "theory": "its theorems as numbers",
    "sweeps": "grids of trainings, on this computer or on Ray",
    "show": "curves, figures, films, the report page",
    "evaluation": "evaluate, certify, and the verdict after a training",
    "training": "the loop, checks before it, the folder it claims, what it writes",
    "runs": "the run folder as others read it: lanes, tables, checkpoints, policies",
    "algos": "what an algorithm is, and one file for each",
    "sampling": "one record of experience, on the device or in Python; playing episodes",
    "envs": "the seam, the tasks, environments in Python, adapters",
    "nets": "networks and distributions of actions",
    "constraints": "what a policy may cost, and all that follows from it",
    "stats": "exact intervals",
    "quantiles": "of costs, and their loss",
    "ranges": "numbers that are ranges",
    "tails": "Weibull and Gaussian tails",
    "named": "code that a text names, trusted or not",
    "errors": "a user's mistakes",
    "kinds": "names for types",
    "output": "streams that hold",
}
# Boxes of the way of a step: column, row, name in the code, what it does.
STEPS = {
    "sample": (0, 0, "algorithm.sample", "the policy draws actions"),
    "step": (0, 1, "env.step", "state, reward, costs, ends"),
    "pack": (0, 2, "record.pack", "one row per step"),
    "episodes": (1, 0, "finished_episodes", "cost of episodes that ended"),
    "window": (1, 1, "Window.add", "recent episodes"),
    "steer": (1, 2, "Constraint.steer", "a statistic and its target"),
    "multiplier": (1, 3, "Multiplier.update", "a PI rule on their difference"),
    "read": (2, 0, "read_trajectory", "rows become a trajectory"),
    "prepare": (2, 1, "PPO._prepare", "critics, reward advantages"),
    "signal": (2, 2, "cost_signal", "cost advantages, targets"),
    "fit": (2, 3, "PPO._fit, PPO._loss", "epochs of gradient steps"),
}
ARROWS = ("sample step", "step pack", "episodes window", "window steer", "steer multiplier", "read prepare")
ARROWS += ("prepare signal", "signal fit", "multiplier fit")


def rooms() -> str:
    """A row for each layer of the contract, the upper ones above."""
    [layers] = [each["layers"] for each in contracts() if each["type"] == "layers"]
    parts = []
    for place, layer in enumerate(layers):
        names = [name.strip().removeprefix("qcrl.") for name in layer.split("|")]
        width = (WIDTH - GAP * (len(names) + 1)) / len(names)
        for column, name in enumerate(names):
            x, y = GAP + column * (width + GAP), GAP + place * (ROW + GAP)
            parts += [box(x, y, width, ROW), text(x + 12, y + 22, name, bold=True)]
            parts.append(text(x + (110 if len(names) == 1 else 92), y + 22, ABOUT[name]))
    return picture(len(layers) * (ROW + GAP) + GAP, parts, "The rooms; each imports only from those below it")


def contracts() -> list[dict]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


def way() -> str:
    """From env.step to the multiplier, and on to the next policy."""
    wide, high, down = 240, 54, 92
    place = {name: (20 + 290 * column, 44 + down * row) for name, (column, row, *_) in STEPS.items()}
    parts = [text(20 + 290 * column, 26, title, bold=True) for column, title in enumerate(("sample", "steer", "learn"))]
    for name, (x, y) in place.items():
        parts += [
            box(x, y, wide, high),
            text(x + 12, y + 23, STEPS[name][2], bold=True),
            text(x + 12, y + 42, STEPS[name][3]),
        ]
    for arrow in ARROWS:
        (x0, y0), (x1, y1) = (place[name] for name in arrow.split())
        across = x0 != x1
        ends = (x0 + wide, y0 + high / 2, x1, y1 + high / 2) if across else (x0 + 60, y0 + high, x1 + 60, y1)
        parts.append(line(f"M{ends[0]},{ends[1]} L{ends[2]},{ends[3]}"))
    x, y = place["pack"]
    for target in ("episodes", "read"):  # rows go to both, through the gap between the columns
        to, height = place[target]
        gap = to - 25
        level = y + high / 2 if target == "episodes" else y + high + 19
        start = f"M{x + wide},{level}" if target == "episodes" else f"M{x + wide / 2},{y + high} V{level}"
        parts.append(line(f"{start} H{gap} V{height + high / 2} H{to}"))
    (x, y), (home, _) = place["fit"], place["sample"]
    bottom = y + high + 22
    parts.append(line(f"M{x + 120},{y + high} V{bottom} H{home - 12} V{place['sample'][1] + high / 2} H{home}"))
    parts.append(text(home + 20, bottom - 8, "the next policy"))
    return picture(bottom + 14, parts, "One iteration of a lane, from env.step to the multiplier and the next policy")


def picture(height: float, parts: list[str], title: str) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" font-family="sans-serif"'
    head += ' font-size="13">'
    mark = '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    mark += '<path d="M0,0 L8,4 L0,8 z" fill="#0072B2"/></marker></defs>'
    paper = f'<rect width="{WIDTH}" height="{height:g}" rx="6" fill="#ffffff"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", mark, paper, *parts, "</svg>"]) + "\n"


def box(x: float, y: float, width: float, height: float) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="#eef3f8" stroke="#0072B2"/>'


def text(x: float, y: float, words: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" fill="#282c34"{weight}>{escape(words)}</text>'


def line(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="#0072B2" stroke-width="1.5" marker-end="url(#end)"/>'


PICTURES = {"rooms.svg": rooms, "way_of_a_step.svg": way}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw())
