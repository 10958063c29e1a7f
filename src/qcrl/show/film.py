"""Films of episodes: the scene, with return, cost against the limit, and the critic's estimate.

Scenes are seen from above, or as an environment in Python draws itself.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from importlib import import_module
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont, ImageOps

from qcrl.constraints import exceeds
from qcrl.envs.adapters.gym_spaces import FRAMES_PER_SECOND, TRAIL
from qcrl.envs.host.filmed import Picture
from qcrl.envs.point.pictures import BLUE, INK, PAPER, PURPLE, VERMILLION, WHITE, Scene, draw
from qcrl.errors import UserError
from qcrl.show.episode import Episode, Seen

FORMATS = (".mp4", ".gif")
GREY = (95, 101, 113)
SIZE, PANEL, BELOW = 480, 320, 304
"""Pixels: side of the picture, width of the panel beside it, height of the one below it where several policies are
shown, which leaves the critic out. Multiples of 16, as video codecs like them."""
GIF_STRIDE = 4
"""A gif shows every so many steps: it stores frames whole, and viewers slow down more than 50 a second."""
HOLD_SECONDS = 1.5
"""How long the last frame stays."""
PALETTE_FRAMES = 4
"""From which a gif takes its colours, and the last one."""
GIF_RATE, GIF_FRAMES = 15, 300
"""Of pictures that an environment itself draws: at most about so many a second, and in all."""

Frame = UInt8[np.ndarray, "height width 3"]


class Shown(NamedTuple):
    """What a film shows of one policy."""

    episode: Episode
    limit: float
    title: str


def film(shown: Sequence[Shown], out: Path, progress: Callable[[int], None] = lambda done: None) -> Path:
    """Write episodes side by side to an mp4 or gif file, in the robot's own time where steps have one."""
    gif, first = out.suffix.lower() == ".gif", shown[0].episode.scenes[0]
    last = max(len(each.episode.scenes) for each in shown) - 1
    rate = FRAMES_PER_SECOND if isinstance(first, Scene) else first.rate if isinstance(first, Picture) else 2.0
    stride = 1
    if gif and isinstance(first, Scene):
        stride = GIF_STRIDE
    elif gif and isinstance(first, Picture):
        stride = max(round(rate / GIF_RATE), -(-last // GIF_FRAMES), 1)
    rate /= stride
    frames = _told(frames_of(shown, [*range(0, last, stride), last]), progress)
    write = _write_gif if gif else _write_mp4
    write(frames, out, rate)
    return out


def _picture(past: Sequence[Seen]) -> Image.Image:
    """The last of these scenes, within a square; where a robot has been before is its trail."""
    if isinstance(past[-1], Picture):
        return ImageOps.contain(Image.open(BytesIO(past[-1].png)), (SIZE, SIZE))
    return Image.fromarray(draw(past[-1], SIZE, [scene.robot for scene in past if isinstance(scene, Scene)]))


def frames_of(shown: Sequence[Shown], steps: Iterable[int]) -> Iterator[Frame]:
    """The pictures of these steps. An episode that has ended stays as it is."""
    alone = len(shown) == 1
    top = 1.25 * max(max(each.limit, float(each.episode.costs[-1])) for each in shown)
    size = (SIZE + PANEL, SIZE) if alone else (SIZE * len(shown), SIZE + BELOW)
    for step in steps:
        picture = Image.new("RGB", size, WHITE)
        for column, each in enumerate(shown):
            now = min(step, len(each.episode.scenes) - 1)
            past = each.episode.scenes[max(0, now - TRAIL) : now + 1]
            scene, place = _picture(past), SIZE * column
            picture.paste(scene, (place + (SIZE - scene.width) // 2, (SIZE - scene.height) // 2))
            panel = Image.new("RGB", (PANEL, SIZE) if alone else (SIZE, BELOW), WHITE)
            _draw_panel(ImageDraw.Draw(panel), panel.width, each, now, top)
            picture.paste(panel, (SIZE, 0) if alone else (place, SIZE))
        yield np.array(picture)


def _draw_panel(pen: ImageDraw.ImageDraw, width: int, shown: Shown, step: int, top: float) -> None:
    episode, limit, title = shown
    left, right, last = 20, width - 20, len(episode.scenes) - 1
    cost = episode.costs[step]
    for line, text in enumerate(title.split("\n")):
        pen.text((left, 14 + 19 * line), text, INK, _font(17 if line == 0 else 13))
    pen.text((left, 92), f"step {step:,} of {last:,}", GREY, _font(14))
    pen.text((left, 116), "return", GREY, _font(14))
    pen.text((right, 112), f"{episode.returns[step]:.2f}", INK, _font(22), anchor="ra")
    over = exceeds(episode.costs, limit)[step]
    pen.text((left, 156), f"cost (limit {limit:g})", GREY, _font(14))
    pen.text(
        (right, 152), f"{cost:.4g}" + (" over" if over else ""), VERMILLION if over else INK, _font(22), anchor="ra"
    )
    _draw_strip(pen, (left, 186, right, 286), episode.costs, step, top, VERMILLION if over else BLUE, limit)
    if episode.outage is None:
        return
    pen.text((left, 316), "critic: Pr(over the limit)", GREY, _font(14))
    pen.text((right, 312), f"{episode.outage[step]:.2f}", INK, _font(22), anchor="ra")
    _draw_strip(pen, (left, 346, right, 436), episode.outage, step, 1.0, PURPLE)
    pen.text((left, 446), episode.estimate_of, GREY, _font(12))


def _draw_strip(
    pen: ImageDraw.ImageDraw,
    box: tuple[int, int, int, int],
    values: np.ndarray,
    step: int,
    top: float,
    colour: tuple[int, int, int],
    mark: float | None = None,
) -> None:
    """A curve up to now, over the whole episode's width."""
    x0, y0, x1, y1 = box
    height = lambda value: y1 - (y1 - y0) * min(max(float(value) / top, 0.0), 1.0)
    across = lambda i: x0 + (x1 - x0) * i / max(1, len(values) - 1)
    pen.rectangle(box, PAPER)
    if mark is not None:
        for x in range(x0, x1, 10):
            pen.line([(x, height(mark)), (min(x + 5, x1), height(mark))], INK, 1)
    pen.line([(across(i), height(values[i])) for i in range(step + 1)] or [(x0, y1)], colour, 2)
    x, y = across(step), height(values[step])
    pen.ellipse((x - 4, y - 4, x + 4, y + 4), colour)


@lru_cache(maxsize=16)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def _told(frames: Iterator[Frame], progress: Callable[[int], None]) -> Iterator[Frame]:
    for count, frame in enumerate(frames, 1):
        yield frame
        progress(count)


def _write_gif(frames: Iterator[Frame], out: Path, rate: float) -> None:
    # One palette for all frames, from some along the way and the vivid last one, or colours would flicker.
    images = [Image.fromarray(frame) for frame in frames]
    chosen = [*images[:: -(-len(images) // PALETTE_FRAMES)], images[-1]]
    sample = Image.new("RGB", (images[0].width, len(chosen) * images[0].height))
    for place, image in enumerate(chosen):
        sample.paste(image, (0, place * image.height))
    palette = sample.quantize(128)
    indexed = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    duration = [round(1000 / rate)] * len(indexed)
    duration[-1] += round(1000 * HOLD_SECONDS)
    indexed[0].save(out, save_all=True, append_images=indexed[1:], duration=duration, loop=0)


def _write_mp4(frames: Iterator[Frame], out: Path, rate: float) -> None:
    ffmpeg = check_writer(out)
    first = next(frames)
    size = (first.shape[1], first.shape[0])
    writer = ffmpeg.write_frames(str(out), size, fps=rate, codec="libx264", quality=7, macro_block_size=2)
    with warnings.catch_warnings():
        # JAX warns of forks; this one only starts ffmpeg.
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        writer.send(None)
    last = first
    for last in chain([first], frames):
        writer.send(np.ascontiguousarray(last))
    for _ in range(round(rate * HOLD_SECONDS)):
        writer.send(np.ascontiguousarray(last))
    writer.close()


def check_writer(out: Path) -> Any:
    """The module that writes mp4 files; call it before any episode is run, as it may be missing."""
    if out.suffix.lower() != ".mp4":
        return None
    try:
        return import_module("imageio_ffmpeg")
    except ImportError:
        raise UserError(
            f'cannot write {out}: mp4 needs imageio with ffmpeg; pip install "qcrl[video]", or give a name in .gif'
        ) from None
