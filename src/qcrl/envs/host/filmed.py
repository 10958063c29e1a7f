"""Pictures of an environment that runs in Python, taken while it is stepped."""

import io
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from qcrl.envs.host.values import shown
from qcrl.errors import UserError
from qcrl.kinds import GymEnv, Tree

if TYPE_CHECKING:
    from qcrl.envs.host.environment import HostEnv

MODE = "rgb_array"
USUAL_RATE = 30.0
"""Steps a second, where an environment does not say."""


class Picture(NamedTuple):
    """What an environment looks like, compressed: episodes have a thousand steps."""

    png: bytes
    rate: float
    """Steps a second."""


class Filmed:
    """An environment that is looked at after every reset and step."""

    def __init__(self, env: GymEnv, watch: Callable[[Picture], None]) -> None:
        self.env = env
        self.watch = watch

    def __getattr__(self, name: str) -> Tree:
        return getattr(self.env, name)

    def reset(self, **options: object) -> Tree:
        return self._seen(self.env.reset(**options))

    def step(self, action: Tree) -> Tree:
        return self._seen(self.env.step(action))

    def _seen(self, outcome: Tree) -> Tree:
        from PIL import Image  # not above: workers have no use for it

        frame = np.asarray(self.env.render())
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            raise UserError(f"render returned {shown(frame)}, but must return height x width x 3 bytes; mend it")
        out = io.BytesIO()
        Image.fromarray(frame).save(out, "png", compress_level=1)
        rate = (getattr(self.env, "metadata", None) or {}).get("render_fps") or USUAL_RATE
        self.watch(Picture(out.getvalue(), float(rate)))
        return outcome


def filmed(env: "HostEnv", watch: Callable[[Picture], None]) -> "HostEnv":
    """The same environment, whose pictures go to `watch`."""
    make = env.make
    if make is None:
        raise UserError(f"{env.id} was given as an object; to film it, give the function that makes it")
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo would look for a screen

    def drawn() -> Filmed:
        try:
            made = make(render_mode=MODE)  # type: ignore[call-arg]
        except TypeError:  # a function that takes nothing
            made = make()
        mode = getattr(made, "render_mode", None)
        if mode != MODE:
            raise UserError(
                f"it cannot be filmed: its render_mode is {mode!r}, but must be {MODE!r}; "
                "let what makes it take render_mode"
            )
        return Filmed(made, watch)

    return replace(env, make=drawn)
