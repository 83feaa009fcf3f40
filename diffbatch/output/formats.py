"""The file formats: which there are and what each can hold. Pure, so that the plan can ask."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_FPS = 16  # frames per second of a clip whose request names none


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """What one suffix can hold."""

    label: str  # for messages
    num_frames: int | None = None  # None: any number
    multiple: int = 1  # height and width must be multiples of this
    max_px: int | None = None  # per side


FORMATS: dict[str, Format] = {
    "png": Format(label="PNG", num_frames=1),
    "jpg": Format(label="JPEG", num_frames=1, max_px=65_500),
    "webp": Format(label="WebP", num_frames=1, max_px=16_383),
    # yuv420p keeps one colour sample per 2 x 2 pixels; players support little else.
    "mp4": Format(label="H.264 in yuv420p", multiple=2, max_px=16_384),
    "webm": Format(label="VP9 in yuv420p", multiple=2, max_px=65_534),
    "gif": Format(label="GIF", max_px=65_535),
    "npy": Format(label="a numpy array"),
}


def suffix_of(file: str) -> str:
    """`a/b.PNG` -> `png`; "" where there is none."""
    name = file.rpartition("/")[2]
    return name.rpartition(".")[2].lower() if "." in name else ""


def check_size(suffix: str, height: int, width: int) -> str | None:
    """Why a `suffix` file cannot hold `height` x `width` pixels, with the nearest legal sizes.

    Nothing is ever rescaled or cropped to fit a format: the pixels asked for are the pixels saved.
    """
    form = FORMATS[suffix.lstrip(".")]
    problems = []
    for name, value in (("height", height), ("width", width)):
        legal = _nearest(form, value)
        if legal != [value]:
            problems.append(f"{name} {value} (nearest: {' or '.join(map(str, legal))})")
    if not problems:
        return None
    rule = f"multiples of {form.multiple}" if form.multiple > 1 else "at least 1"
    limit = f", at most {form.max_px}" if form.max_px else ""
    return (
        f"{suffix.lstrip('.')} ({form.label}) takes sizes in pixels that are {rule}{limit}: "
        f"{', '.join(problems)}; change the size or the format"
    )


def check_frames(suffix: str, num_frames: int) -> str | None:
    """Why a `suffix` file cannot hold `num_frames` frames."""
    form = FORMATS[suffix.lstrip(".")]
    if num_frames < 1 or form.num_frames in (None, num_frames):
        return None if num_frames >= 1 else f"num_frames is {num_frames}; it must be at least 1"
    return (
        f"{suffix.lstrip('.')} holds one picture, and this is a clip of {num_frames} frames; "
        "use mp4, webm, gif or npy"
    )


def _nearest(form: Format, value: int) -> list[int]:
    """`[value]` when legal, else the legal values next to it."""
    top = form.max_px if form.max_px is not None else max(value, 1)
    top -= top % form.multiple
    below = min(value - value % form.multiple, top)
    if below == value and value > 0:
        return [value]
    around = {below, min(below + form.multiple, top)}
    return sorted(legal for legal in around if legal > 0) or [form.multiple]
