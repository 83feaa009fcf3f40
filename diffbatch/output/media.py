"""Frames to a file, by suffix. uint8 in, and what is in is what is saved: no rescale, no guess."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diffbatch.errors import ReqError
from diffbatch.output.embed import Embedded
from diffbatch.output.formats import DEFAULT_FPS, FORMATS, check_frames, check_size, suffix_of
from diffbatch.output.image import encode_image
from diffbatch.output.video import write_video

if TYPE_CHECKING:
    from diffbatch.req import Frames

# How a complete file of each format begins (at an offset) and ends.
_SHAPES: dict[str, tuple[int, bytes, bytes]] = {
    "png": (0, b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"),
    "jpg": (0, b"\xff\xd8\xff", b"\xff\xd9"),
    "webp": (0, b"RIFF", b""),
    "mp4": (4, b"ftyp", b""),
    "webm": (0, b"\x1aE\xdf\xa3", b""),
    "gif": (0, b"GIF89a", b";"),
    "npy": (0, b"\x93NUMPY", b""),
}


def write_media(path: Path, frames_FHWC: Frames, meta: Embedded, fps: int | None = None) -> None:
    """Write `frames_FHWC` (uint8, RGB, channels last) to `path` in the format of its suffix.

    Equal pixels, parameters and rate give equal bytes. A request that the format cannot hold is a
    ReqError, a device that fails is an OSError. `npy` holds the (F, H, W, 3) array and no
    parameters: those are in the manifest.
    """
    suffix = suffix_of(path.name)
    if suffix not in FORMATS:
        raise ReqError(f"no format {suffix!r}; there are {', '.join(FORMATS)}")
    if frames_FHWC.dtype != np.uint8 or frames_FHWC.ndim != 4 or frames_FHWC.shape[3] != 3:
        found = f"{frames_FHWC.dtype} {frames_FHWC.shape}"
        raise ReqError(f"frames are {found}; expected uint8 of shape (frames, height, width, 3)")
    frames_FHWC = np.ascontiguousarray(frames_FHWC)
    num_frames, height, width, _ = frames_FHWC.shape
    problem = check_frames(suffix, num_frames) or check_size(suffix, height, width)
    if problem:
        raise ReqError(problem)
    if suffix == "npy":
        write_npy(path, frames_FHWC)
    elif FORMATS[suffix].num_frames == 1:
        path.write_bytes(encode_image(frames_FHWC[0], suffix, meta))
    else:
        write_video(path, frames_FHWC, fps or DEFAULT_FPS, meta)


def write_npy(path: Path, array: Frames) -> None:
    """The array as numpy's own file; `np.save` would lose the reason when a disk is full."""
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.data)


def check_whole(path: Path) -> None:
    """Raise an OSError unless the file begins and ends as its format does.

    Cheap enough for every file: an encoder or file system that fails in silence is caught before
    the file gets its final name.
    """
    offset, head, tail = _SHAPES[suffix_of(path.name)]
    with path.open("rb") as file:
        begin = file.read(offset + len(head))
        size = file.seek(0, 2)
        file.seek(max(0, size - max(len(tail), 1)))
        end = file.read()
    if size == 0 or begin[offset:] != head or (tail and end != tail):
        raise OSError(f"the written file is not a complete {path.suffix.lstrip('.')}")


def is_flat(frames_FHWC: Frames) -> bool:
    """True when every pixel of every frame has one value: what a broken decode often leaves."""
    first = frames_FHWC[0, 0, 0]
    return all(bool((frame == first).all()) for frame in frames_FHWC)
