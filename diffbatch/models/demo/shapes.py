"""The world the demo model knows: its colours, its shapes and how a shape is drawn.

Shared by the data that the model is trained on and by the checker that judges its pictures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

Outline: TypeAlias = list[tuple[float, float]]
"""Corners (x, y) in units of the radius, y pointing down, inside [-1, 1] squared."""

PALETTE: dict[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "yellow": (245, 215, 40),
    "orange": (245, 140, 30),
    "purple": (130, 50, 170),
    "pink": (245, 150, 190),
    "cyan": (60, 200, 215),
    "white": (245, 245, 245),
    "black": (20, 20, 20),
    "gray": (128, 128, 128),
}
"""Colour name -> sRGB, 0..255."""

OBJECT_COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "pink", "cyan")
BACKGROUNDS = ("white", "black", "gray", "yellow", "blue", "pink", "green")

_SUPERSAMPLING = 4


def shape_mask(
    shape: str, side_px: int, centre: tuple[float, float], radius: float
) -> npt.NDArray[np.float32]:
    """Coverage of each pixel by the shape, (side_px, side_px), 0..1, anti-aliased.

    `centre` (x, y) and `radius` are fractions of the side.
    """
    scale = side_px * _SUPERSAMPLING
    canvas = Image.new("L", (scale, scale), 0)
    pen = ImageDraw.Draw(canvas)
    for outline, ink in OUTLINES[shape]():
        corners = [
            (scale * (centre[0] + radius * x), scale * (centre[1] + radius * y)) for x, y in outline
        ]
        pen.polygon(corners, fill=ink)
    small = canvas.resize((side_px, side_px), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32) / 255.0


def _ellipse(radius: float, num_corners: int = 48) -> Outline:
    angles = [2 * math.pi * k / num_corners for k in range(num_corners)]
    return [(radius * math.cos(a), radius * math.sin(a)) for a in angles]


def _star() -> Outline:
    corners: Outline = []
    for k in range(10):
        radius = 1.05 if k % 2 == 0 else 0.45
        angle = math.pi * k / 5 - math.pi / 2
        corners.append((radius * math.cos(angle), radius * math.sin(angle)))
    return corners


def _cross() -> Outline:
    arm = 0.33
    quarter = [(arm, -1.0), (arm, -arm), (1.0, -arm)]
    corners: Outline = []
    for _ in range(4):
        corners += quarter
        quarter = [(-y, x) for x, y in quarter]
    return corners


def _heart() -> Outline:
    # The usual parametric heart, scaled from about 16 units to 1 and flipped: y points down.
    corners: Outline = []
    for k in range(64):
        t = 2 * math.pi * k / 64
        x = 16 * math.sin(t) ** 3
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        corners.append((x / 16, -(y + 2.5) / 15))
    return corners


_SQUARE: Outline = [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)]
_TRIANGLE: Outline = [(0.0, -0.95), (1.0, 0.8), (-1.0, 0.8)]
_DIAMOND: Outline = [(0.0, -1.0), (0.8, 0.0), (0.0, 1.0), (-0.8, 0.0)]

OUTLINES: dict[str, Callable[[], list[tuple[Outline, int]]]] = {
    "circle": lambda: [(_ellipse(0.95), 255)],
    "square": lambda: [(_SQUARE, 255)],
    "triangle": lambda: [(_TRIANGLE, 255)],
    "star": lambda: [(_star(), 255)],
    "cross": lambda: [(_cross(), 255)],
    "ring": lambda: [(_ellipse(1.0), 255), (_ellipse(0.55), 0)],
    "diamond": lambda: [(_DIAMOND, 255)],
    "heart": lambda: [(_heart(), 255)],
}
"""Shape name -> polygons drawn one over the other, each with its ink (255 fills, 0 cuts out)."""

SHAPES = tuple(OUTLINES)
