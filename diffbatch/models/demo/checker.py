"""What a picture of the demo model shows, told by pixel rules: no model, no training.

The background is the palette colour that most of the border has; the object is the largest
connected area that is nearer to the object's colour than to the background's; its shape is the
template with the best overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from PIL import Image

from diffbatch.models.demo.shapes import PALETTE, SHAPES, shape_mask

Picture = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

_TEMPLATE_PX = 48
_TEMPLATE_AREA_PX = 480  # leaves room for the arms of a star
_MIN_CONTRAST = 60.0  # RGB distance from the background at which a pixel belongs to the object
_MIN_AREA_PX = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What is on a picture; colour and shape are None where there is no object."""

    background: str
    colour: str | None
    shape: str | None


def look(picture: Picture) -> Seen:
    """Read a picture, (H, W, 3) uint8 0..255, with one object on a plain background."""
    names = _nearest_colour(picture)
    border = np.concatenate([names[0], names[-1], names[:, 0], names[:, -1]])
    background = _most_common(border)
    paper = np.median(picture[names == background].reshape(-1, 3), axis=0)
    distance = np.linalg.norm(picture.astype(np.float32) - paper, axis=-1)
    rough = _largest_area(distance > _MIN_CONTRAST)
    if rough.sum() < _MIN_AREA_PX:
        return Seen(background=background, colour=None, shape=None)
    # The far half of the object's pixels: the near ones are the anti-aliased edge, whose mixed
    # colour may lie closest to a third colour of the palette.
    core = rough & (distance >= np.median(distance[rough]))
    colour = _most_common(names[core])
    ink = np.median(picture[core], axis=0)
    return Seen(background=background, colour=colour, shape=_shape(picture, paper, ink))


def _nearest_colour(picture: Picture) -> npt.NDArray[np.str_]:
    palette = np.array(list(PALETTE.values()), dtype=np.float32)
    distance = np.linalg.norm(picture[:, :, None].astype(np.float32) - palette, axis=-1)
    names: npt.NDArray[np.str_] = np.array(list(PALETTE))[distance.argmin(axis=-1)]
    return names


def _most_common(names: npt.NDArray[np.str_]) -> str:
    values, counts = np.unique(names, return_counts=True)
    return str(values[counts.argmax()])


def _shape(
    picture: Picture, paper: npt.NDArray[np.floating], ink: npt.NDArray[np.floating]
) -> str | None:
    towards = (ink - paper).astype(np.float32)
    share = (picture.astype(np.float32) - paper) @ towards / (towards @ towards)
    area = _largest_area(share > 0.5)
    if area.sum() < _MIN_AREA_PX:
        return None
    found = _normalised(area)
    overlaps = {shape: _overlap(found, template) for shape, template in _templates().items()}
    return max(overlaps, key=lambda shape: overlaps[shape])


@cache
def _templates() -> dict[str, npt.NDArray[np.float32]]:
    return {shape: _normalised(shape_mask(shape, 128, (0.5, 0.5), 0.42) > 0.5) for shape in SHAPES}


def _normalised(area: Mask) -> npt.NDArray[np.float32]:
    """The area about its centre, scaled to a set number of pixels, in a _TEMPLATE_PX square, 0..1.

    Scaling by area and not by bounding box keeps the proportions (a diamond is taller than wide)
    and does not hang on the tips of a shape, which are the first to be lost.
    """
    rows, columns = np.nonzero(area)
    reach = 0.5 * _TEMPLATE_PX * (area.sum() / _TEMPLATE_AREA_PX) ** 0.5
    centre = (columns.mean() + 0.5, rows.mean() + 0.5)
    box = (centre[0] - reach, centre[1] - reach, centre[0] + reach, centre[1] + reach)
    image = Image.fromarray(area.astype(np.uint8) * 255)
    small = image.transform(
        (_TEMPLATE_PX, _TEMPLATE_PX), Image.Transform.EXTENT, box, Image.Resampling.BILINEAR
    )
    return np.asarray(small, dtype=np.float32) / 255.0


def _overlap(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    return float(np.minimum(a, b).sum() / np.maximum(a, b).sum())


def _largest_area(mask: Mask) -> Mask:
    """The largest 4-connected area of the mask."""
    left = mask.copy()
    largest = np.zeros_like(mask)
    while left.any():
        area = _flood(left, int(np.flatnonzero(left)[0]))
        left &= ~area
        if area.sum() > largest.sum():
            largest = area
    return largest


def _flood(mask: Mask, seed: int) -> Mask:
    area = np.zeros_like(mask)
    area.flat[seed] = True
    while True:
        grown = area.copy()
        grown[1:] |= area[:-1]
        grown[:-1] |= area[1:]
        grown[:, 1:] |= area[:, :-1]
        grown[:, :-1] |= area[:, 1:]
        grown &= mask
        if (grown == area).all():
            return area
        area = grown
