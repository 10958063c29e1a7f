"""Top-down pictures of the environments, drawn with Pillow: no OpenGL, no display.

Colours are Okabe and Ito's, which colour-blind eyes can tell apart; every kind of object also has a shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from qcrl.envs.point.tasks import Task
from qcrl.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

Place = Sequence[float] | np.ndarray
Frame = UInt8[np.ndarray, "size size 3"]

BLUE, GREEN, VERMILLION = (0, 114, 178), (0, 158, 115), (213, 94, 0)
YELLOW, PURPLE = (240, 228, 66), (204, 121, 167)
ROUTES = (VERMILLION, GREEN)
"""Of the two-path example, in films, figures and reports alike."""
INK, GREY, WHITE, PAPER = (40, 44, 52), (150, 155, 165), (255, 255, 255), (240, 242, 245)
MARGIN = 0.4
"""How much of the world outside the placement square is shown, in metres."""
_SMOOTHING = 2
"""Pictures are drawn this many times as large and then reduced."""


class Scene(NamedTuple):
    """What a picture of one moment shows, as NumPy values and plain numbers, from either engine."""

    task: Task
    """Sizes and the placement square."""
    robot: Float[np.ndarray, " 2"]
    heading: float
    goal: Float[np.ndarray, " 2"] | None
    """None in button tasks."""
    hazards: Float[np.ndarray, "hazards 2"]
    buttons: Float[np.ndarray, "buttons 2"]
    goal_button: int
    buttons_live: bool
    """False while the button timer runs: touching a wrong button is free then."""
    gremlins: Float[np.ndarray, "gremlins 2"]
    """Where the boxes are now, not the centres of their circles."""
    gremlin_yaw: Float[np.ndarray, " gremlins"]
    cost: bool
    """Whether the last step had a cost."""


class TwoPathScene(NamedTuple):
    """A moment of the two-path example: the route taken (0: none yet) and how many steps of it are done."""

    route: int
    position: int
    length: int


def draw(scene: Scene | TwoPathScene, size: int = 400, trail: Sequence[Place] = ()) -> Frame:
    """A square picture of the scene; `trail` holds past robot positions, oldest first."""
    image = _draw_two_paths(scene, size) if isinstance(scene, TwoPathScene) else _draw_task(scene, size, trail)
    return np.array(image.reduce(_SMOOTHING))


class Pen:
    """Draws in metres on a picture whose middle is the origin, y upwards."""

    def __init__(self, image: Image.Image, half_width: float):
        self.half_width = half_width
        self.scale = image.width / (2 * half_width)
        self._middle = image.width / 2
        from PIL import ImageDraw  # not above: a computer that runs policies need not have it

        self._draw = ImageDraw.Draw(image, "RGBA")
        self._stroke = max(1, round(image.width / 200))

    def pixel(self, x: float, y: float) -> tuple[float, float]:
        return self._middle + x * self.scale, self._middle - y * self.scale

    def disc(self, centre: Place, radius: float, fill=None, outline=None, stroke: float = 1) -> None:
        x, y = self.pixel(*centre)
        r = radius * self.scale
        self._draw.ellipse((x - r, y - r, x + r, y + r), fill, outline, round(stroke * self._stroke))

    def polygon(self, points: Sequence[Place], fill=None, outline=None, stroke: float = 1) -> None:
        self._draw.polygon([self.pixel(*p) for p in points], fill, outline, round(stroke * self._stroke))

    def line(self, points: Sequence[Place], fill, stroke: float = 1) -> None:
        self._draw.line([self.pixel(*p) for p in points], fill, round(stroke * self._stroke), joint="curve")

    def frame(self, colour: tuple[int, ...], stroke: float) -> None:
        """A border just inside the picture's edge."""
        side = 2 * self._middle - 1
        self._draw.rectangle((0, 0, side, side), outline=colour, width=round(stroke * self._stroke))


def _draw_task(scene: Scene, size: int, trail: Sequence[Place]) -> Image.Image:
    task = scene.task
    half_width = task.extent + MARGIN
    image = _floor(task.extent, size).copy()
    pen = Pen(image, half_width)
    for hazard in scene.hazards:
        _draw_hazard(pen, hazard, task.hazard_size)
    if scene.goal is not None:
        pen.disc(scene.goal, task.goal_size, (*GREEN, 70), GREEN, 2)
        pen.disc(scene.goal, task.goal_size * 0.6, outline=GREEN)
        pen.disc(scene.goal, task.goal_size * 0.2, GREEN)
    for i, button in enumerate(scene.buttons):
        if i == scene.goal_button:
            pen.disc(button, task.button_size * 1.7, (*GREEN, 70), GREEN, 2)
        lit = YELLOW if i == scene.goal_button else GREY if scene.buttons_live else PAPER
        pen.disc(button, task.button_size, lit, INK)
    for gremlin, yaw in zip(scene.gremlins, scene.gremlin_yaw):
        half = task.gremlin_size
        corners = ((half, half), (-half, half), (-half, -half), (half, -half))
        pen.polygon([_turned(gremlin, yaw, *corner) for corner in corners], PURPLE, INK)
        for side in (-0.4, 0.4):
            pen.disc(_turned(gremlin, yaw, 0.25 * half, side * half), 0.25 * half, WHITE)
    _draw_trail(pen, list(trail))
    _draw_robot(pen, scene)
    if scene.cost:
        pen.frame(VERMILLION, 5)
    return image


def _blank(size: int, colour: tuple[int, int, int]) -> Image.Image:
    from PIL import Image

    return Image.new("RGB", (size * _SMOOTHING,) * 2, colour)


@lru_cache(maxsize=8)
def _floor(extent: float, size: int) -> Image.Image:
    """The empty world: the placement square with a grid of half metres."""
    image = _blank(size, PAPER)
    pen = Pen(image, extent + MARGIN)
    pen.polygon([(-extent, -extent), (extent, -extent), (extent, extent), (-extent, extent)], WHITE)
    for k in range(-math.floor(2 * extent), math.floor(2 * extent) + 1):
        pen.line([(k / 2, -extent), (k / 2, extent)], PAPER)
        pen.line([(-extent, k / 2), (extent, k / 2)], PAPER)
    return image


def _draw_hazard(pen: Pen, centre: Place, radius: float) -> None:
    """A hatched disc."""
    x, y = centre
    pen.disc(centre, radius, (*VERMILLION, 60), VERMILLION, 2)
    for across in (-0.6, -0.2, 0.2, 0.6):
        along = math.sqrt(1 - across**2) * 0.97
        start, end = ((across + side * along) * radius / math.sqrt(2) for side in (-1, 1))
        pen.line(
            [
                (x + start, y + start - across * radius * math.sqrt(2)),
                (x + end, y + end - across * radius * math.sqrt(2)),
            ],
            (*VERMILLION, 120),
        )


def _draw_trail(pen: Pen, points: list[Place]) -> None:
    """A line that fades with age, in pieces that overlap by a point."""
    length = len(points) // 10 + 1
    for start in range(0, len(points) - 1, length):
        pen.line(points[start : start + length + 1], _pale(BLUE, 0.25 + 0.5 * start / len(points)), 1.5)


def _draw_robot(pen: Pen, scene: Scene) -> None:
    """The sphere with its arrow; at the edge of the picture where the robot is outside it."""
    limit = pen.half_width - 0.2
    robot = np.clip(scene.robot, -limit, limit)
    outline = VERMILLION if scene.cost else WHITE
    pen.disc(robot, 0.12, outline)
    nose = [_turned(robot, scene.heading, x, y) for x, y in ((0.06, 0.08), (0.21, 0.0), (0.06, -0.08))]
    pen.polygon(nose, BLUE)
    pen.disc(robot, 0.1, BLUE)
    mark = [_turned(robot, scene.heading, x, y) for x, y in ((0.07, 0.0), (-0.05, 0.05), (-0.05, -0.05))]
    pen.polygon(mark, WHITE)


def _pale(colour: tuple[int, int, int], strength: float) -> tuple[int, ...]:
    """The colour thinned with white. Opaque, so that crossings and joints do not show."""
    return tuple(round(255 - (255 - c) * strength) for c in colour)


def _turned(centre: Place, angle: float, x: float, y: float) -> tuple[float, float]:
    cosine, sine = math.cos(angle), math.sin(angle)
    return centre[0] + x * cosine - y * sine, centre[1] + x * sine + y * cosine


def _draw_two_paths(scene: TwoPathScene, size: int) -> Image.Image:
    """Route 1 above, route 2 below, start on the left, goal on the right."""
    image = _blank(size, WHITE)
    pen = Pen(image, 1.0)

    def place(route: int, share: float) -> tuple[float, float]:
        bend = {0: 0.0, 1: 0.55, 2: -0.55}[route]
        return 1.5 * share - 0.75, bend * math.sin(math.pi * share)

    for route, colour in enumerate(ROUTES, 1):
        shade = _pale(colour, 1.0 if scene.route in (0, route) else 0.3)
        pen.line([place(route, i / 40) for i in range(41)], shade, 3)
        for i in range(1, scene.length):
            pen.disc(place(route, i / scene.length), 0.03, WHITE, shade, 2)
    pen.disc(place(0, 0), 0.06, WHITE, INK, 2)
    pen.disc(place(0, 1), 0.09, _pale(GREEN, 0.3), GREEN, 2)
    pen.disc(place(scene.route, scene.position / scene.length), 0.05, BLUE, INK)
    return image


def open_camera(engine: Any, size: int) -> Callable[[], Frame]:
    """A function that takes a picture of a `MujocoEngine` with MuJoCo's own renderer, from above."""
    import mujoco

    try:
        renderer = mujoco.Renderer(engine.model, size, size)
    except Exception as error:  # every OpenGL backend fails with an exception of its own
        raise UserError(
            f"MuJoCo's renderer needs OpenGL, and none works here ({error}); set MUJOCO_GL to egl or osmesa,"
            " or use renderer='top_down'"
        ) from error

    def photograph() -> Frame:
        for i in range(engine.task.buttons):
            colour = YELLOW if i == engine.layout.goal_button else GREY
            engine.model.geom(f"button{i}").rgba[:3] = np.array(colour) / 255
        renderer.update_scene(engine.data, "top")
        return renderer.render()

    return photograph
