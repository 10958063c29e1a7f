"""The picture of the four tasks in the documentation: `python -m qcrl.envs.point.gallery docs/images/tasks.png`."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from qcrl.envs.point.mujoco_engine import MujocoEngine
from qcrl.envs.point.pictures import INK, WHITE, draw
from qcrl.envs.point.scripted import seek_goal
from qcrl.envs.point.tasks import TASKS, Task

SIZE, GAP, CAPTION = 400, 16, 44


def snapshot(task: Task, seed: int, steps: int) -> np.ndarray:
    """The task after some steps of driving straight at the goal."""
    engine, trail = MujocoEngine(task), []
    obs = engine.reset(np.random.default_rng(seed))
    for _ in range(steps):
        trail.append(engine.scene().robot)
        obs = engine.step(seek_goal(obs, task, np)).obs
    return draw(engine.scene(), SIZE, trail)


def compose() -> Image.Image:
    """All tasks side by side, each under its name."""
    picture = Image.new("RGB", (len(TASKS) * (SIZE + GAP) - GAP, SIZE + CAPTION), WHITE)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(24)
    for i, task in enumerate(TASKS.values()):
        left = i * (SIZE + GAP)
        pen.text((left + SIZE / 2, CAPTION / 2), task.id, INK, font, anchor="mm")
        picture.paste(Image.fromarray(snapshot(task, seed=3, steps=110)), (left, CAPTION))
    return picture


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/tasks.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    compose().save(path)
