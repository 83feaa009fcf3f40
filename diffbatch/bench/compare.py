"""Whether every point made the same outputs: by hash, then by pixels where files can be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Sums are taken in another order, or with other kernels: the last bits may differ.
_INEXACT = ("tp", "ring", "batch_size")
_LOSSLESS = frozenset({".png", ".webp", ".npy"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """The outputs of one launch: job index -> (sha256, path)."""

    point: int
    label: str
    settings: Mapping[str, int | str]  # layout degrees and batch size, whether swept or not
    files: Mapping[int, tuple[str, Path]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How the outputs of one launch differ from those of the first."""

    point: int
    label: str
    num: int  # outputs that differ
    of: int
    expected: bool  # the point sums in another order
    max_level: int | None  # largest difference of a pixel's channel, 0..255; None: not readable

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "point": self.point,
            "num": self.num,
            "of": self.of,
            "expected": self.expected,
            "max_level": self.max_level,
        }

    def __str__(self) -> str:
        by = "" if self.max_level is None else f", by at most {self.max_level} of 255"
        why = (
            "; expected: tp, ring and batch_size change the order of sums"
            if self.expected
            else "; THIS MUST NOT BE: replicas, pp, cfg, ulysses and in_flight keep every bit"
        )
        return f"{self.label}: {self.num} of {self.of} outputs differ from the first point{by}{why}"


def difference(first: Made, made: Made) -> Difference | None:
    """How the outputs of `made` differ from those of the first launch; None when they do not."""
    common = sorted(first.files.keys() & made.files.keys())
    # The id is inside a file and depends on the batch size: equal pixels may lie in unequal files.
    unequal = [index for index in common if first.files[index][0] != made.files[index][0]]
    levels = {i: _max_level(first.files[i][1], made.files[i][1]) for i in unequal}
    different = [level for level in levels.values() if level != 0]
    if not different:
        return None
    known = [level for level in different if level is not None]
    return Difference(
        point=made.point,
        label=made.label,
        num=len(different),
        of=len(common),
        expected=any(first.settings.get(axis) != made.settings.get(axis) for axis in _INEXACT),
        max_level=max(known) if len(known) == len(different) else None,
    )


def _max_level(one: Path, other: Path) -> int | None:
    """Largest difference of any channel of any pixel; None where files cannot tell."""
    if one.suffix not in _LOSSLESS or not (one.exists() and other.exists()):
        return None
    import numpy as np

    pixels, others = _pixels(one), _pixels(other)
    if pixels.shape != others.shape:
        return 255
    return int(np.abs(pixels.astype(np.int16) - others.astype(np.int16)).max())


def _pixels(path: Path) -> Any:
    import numpy as np

    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))
