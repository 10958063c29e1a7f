"""Images among observations, and the small CNN that looks at them. It needs no JAX: arrays may be NumPy's or JAX's.

A layer takes squares of 2 x 2 blocks of pixels, one block apart. What a block adds to the four squares that it is part
of is one product, which needs no copies of overlapping squares and serves many lanes at once.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType

import numpy as np

from qcrl.kinds import Json, Tree

FEWEST_PIXELS = 7
"""Arrays with a shorter side are no images, but numbers like others."""
MANY_PIXELS = 36
"""From here on the first layer's blocks are 4 pixels wide, else 2."""
CHANNELS = 16, 32
"""Outputs of the layers."""
WHITE = 255.0
"""The highest value of a pixel."""
PLACES = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Where a block may lie in a square."""


@dataclass(frozen=True)
class Image:
    """Where an image lies in an observation, and how its axes become height, width and channels."""

    start: int
    shape: tuple[int, ...]
    """As the environment has it: any number of frames first, channels first, last or not at all."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        return self.start + self.size

    @property
    def order(self) -> tuple[int, ...]:
        """The axes: height, width, then those that are channels. The shorter one of the outer axes is channels."""
        axes = tuple(range(len(self.shape)))
        frames, own = axes[:-3], axes[-3:]
        if len(own) < 3:
            return axes
        first = self.shape[own[0]] < self.shape[own[2]]
        return (own[1], own[2], *frames, own[0]) if first else (own[0], own[1], *frames, own[2])

    @property
    def sides(self) -> tuple[int, int]:
        height, width = (self.shape[axis] for axis in self.order[:2])
        return height, width

    @property
    def channels(self) -> int:
        return self.size // math.prod(self.sides)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Sides of the blocks of each layer, in pixels."""
        return (4, 2) if min(self.sides) >= MANY_PIXELS else (2, 2)

    @property
    def kernels(self) -> list[tuple[int, int]]:
        """Rows and columns of each layer's kernel."""
        sizes = (self.channels, *CHANNELS)
        return [(block**2 * old, 4 * new) for block, (old, new) in zip(self.blocks, pairwise(sizes))]

    @property
    def features(self) -> int:
        """How many numbers the layers make of it."""
        height, width = self.sides
        for block in self.blocks:
            height, width = (-(-side // block) - 1 for side in (height, width))
        return height * width * CHANNELS[-1]

    def as_dict(self) -> Json:
        return {"start": self.start, "shape": list(self.shape)}

    @classmethod
    def from_dict(cls, description: Json) -> "Image":
        return cls(description["start"], tuple(description["shape"]))

    def pixels(self, x: Tree) -> Tree:
        """[..., height, width, channel] of rows of observations."""
        batch = x.shape[:-1]
        shaped = x[..., self.start : self.end].reshape(*batch, *self.shape)
        ordered = shaped.transpose(*range(len(batch)), *(len(batch) + axis for axis in self.order))
        return ordered.reshape(*batch, *self.sides, self.channels)


def is_image(shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether an array of this kind is looked at as an image."""
    if dtype != np.uint8 or not 2 <= len(shape) <= 4:
        return False
    return min(Image(0, shape).sides) >= FEWEST_PIXELS


def features(x: Tree, images: tuple[Image, ...], layers: list[list[tuple[Tree, Tree]]], xp: ModuleType) -> Tree:
    """Rows of observations with what the layers see instead of each image, behind the numbers that are no pixels.

    `layers` are kernel and bias of every layer, for each image.
    """
    batch, seen, at = x.shape[:-1], [], 0
    for image in images:
        seen.append(x[..., at : image.start])
        at = image.end
    seen.append(x[..., at:])
    for image, own in zip(images, layers):
        y = image.pixels(x)
        for block, (kernel, bias) in zip(image.blocks, own):
            y = xp.maximum(convolve(y, kernel, block, xp) + bias, 0.0)
        seen.append(y.reshape(*batch, -1))
    return xp.concatenate(seen, axis=-1)


def convolve(x: Tree, kernel: Tree, block: int, xp: ModuleType) -> Tree:
    """Squares of 2 x 2 blocks, one block apart; what is missing to a whole block is 0."""
    *batch, height, width, channels = x.shape
    rows, columns = (-(-side // block) for side in (height, width))
    missing = [(0, 0)] * len(batch) + [(0, rows * block - height), (0, columns * block - width), (0, 0)]
    x = xp.pad(x, missing).reshape(*batch, rows, block, columns, block, channels)
    x = xp.swapaxes(x, -4, -3).reshape(*batch, rows, columns, block * block * channels)
    # In the kernel's type, where that is a shorter one; the sum is not.
    out = xp.matmul(x.astype(kernel.dtype), kernel).astype(xp.float32)
    parts = out.reshape(*batch, rows, columns, 4, -1)
    shifted = [
        parts[..., down : rows - 1 + down, right : columns - 1 + right, place, :]
        for place, (down, right) in enumerate(PLACES)
    ]
    return sum(shifted[1:], shifted[0])


def filters(kernel: np.ndarray, block: int) -> np.ndarray:
    """The kernel as others have it: [output, channel, height, width], with strides of `block`."""
    shaped = kernel.reshape(block, block, -1, 2, 2, kernel.shape[1] // 4)
    ordered = shaped.transpose(5, 2, 3, 0, 4, 1)  # output, channel, down, row in block, right, column in block
    return ordered.reshape(*ordered.shape[:2], 2 * block, 2 * block)
