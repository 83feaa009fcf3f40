"""A contact sheet of a run: every picture (a clip's first frame) with its prompt. No torch."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from diffbatch.errors import RunFolderError
from diffbatch.output.formats import suffix_of
from diffbatch.output.manifest import read_manifest
from diffbatch.req import Record

_MAX_PIXELS = 80_000_000  # of a sheet; viewers and hosts refuse much larger pictures
_GAP_PX, _LINES, _FONT_PX = 8, 3, 12
_MARK = "diffbatch sheet"
_FONTS = ("NotoSansCJK-Regular.ttc", "DejaVuSans.ttf")  # more characters than Pillow's own
_PAPER = (232, 232, 236)


Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetChoices:
    """How a sheet looks."""

    columns: int = 4
    width_px: int = 192  # of one picture
    font: Path | None = None  # None: one of `_FONTS` that is installed, or Pillow's own


def save_sheet(sheet: Image.Image, path: Path) -> None:
    """Write the sheet as a PNG that `check_replaceable` knows again."""
    info = PngInfo()
    info.add_text("Software", _MARK)
    sheet.save(path, format="PNG", pnginfo=info)


def check_replaceable(path: Path) -> None:
    """RunFolderError when `path` exists and is not a sheet that we made: nothing is overwritten."""
    if not path.exists():
        return
    with suppress(OSError), Image.open(path) as picture:
        if picture.info.get("Software") == _MARK:
            return
    raise RunFolderError("exists and is no sheet of ours; choose another --output", place=str(path))


def make_sheet(run_folder: Path, choices: SheetChoices) -> Image.Image:
    """The pictures of a run, in the job's order. RunFolderError for none, or too many."""
    records = [r for r in read_manifest(run_folder).values() if r.status == "ok"]
    records.sort(key=lambda record: record.index)
    if not records:
        raise RunFolderError(f"{run_folder} holds no finished picture; run a job into it first")
    font = _font(choices.font)
    cells = [_cell(run_folder, record, choices.width_px, font) for record in records]
    return _arranged(cells, choices)


def _font(path: Path | None) -> Font:
    if path is not None:
        try:
            return ImageFont.truetype(path, _FONT_PX)
        except OSError as error:
            raise RunFolderError(
                f"not a font that can be read: {error}", place=str(path)
            ) from error
    for name in _FONTS:
        with suppress(OSError):  # not installed
            return ImageFont.truetype(name, _FONT_PX)
    return ImageFont.load_default(size=_FONT_PX)


def _cell(run_folder: Path, record: Record, width_px: int, font: Font) -> Image.Image:
    picture = _first_frame(run_folder / record.file)
    height_px = max(1, round(picture.height * width_px / picture.width))
    # Small pictures are shown as they are, pixel by pixel.
    enlarged = width_px >= picture.width
    resample = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
    line_px = 15
    cell = Image.new("RGB", (width_px, height_px + _LINES * line_px + 4), _PAPER)
    cell.paste(picture.resize((width_px, height_px), resample), (0, 0))
    text = textwrap.wrap(" ".join(record.prompt.split()), max(8, width_px // 6))
    shown = text[:_LINES]
    if len(text) > _LINES:
        shown[-1] = shown[-1][:-3] + "..."
    for number, line in enumerate(shown):
        place = (0, height_px + 2 + number * line_px)
        ImageDraw.Draw(cell).text(place, line, fill="black", font=font)
    return cell


def _first_frame(path: Path) -> Image.Image:
    if suffix_of(path.name) in {"mp4", "webm"}:
        import imageio_ffmpeg

        frames = imageio_ffmpeg.read_frames(str(path))
        meta = next(frames)
        return Image.frombytes("RGB", meta["size"], next(frames))
    if suffix_of(path.name) == "npy":
        import numpy as np

        return Image.fromarray(np.load(path, allow_pickle=False)[0])
    with Image.open(path) as picture:
        return picture.convert("RGB")


def _arranged(cells: Sequence[Image.Image], choices: SheetChoices) -> Image.Image:
    columns = min(choices.columns, len(cells))
    rows = [cells[at : at + columns] for at in range(0, len(cells), columns)]
    heights = [max(cell.height for cell in row) for row in rows]
    width = columns * choices.width_px + (columns + 1) * _GAP_PX
    height = sum(heights) + (len(rows) + 1) * _GAP_PX
    if width * height > _MAX_PIXELS:
        raise RunFolderError(
            f"a sheet of {len(cells)} pictures would have {width} x {height} pixels, more than "
            f"{_MAX_PIXELS}; lower --width"
        )
    sheet = Image.new("RGB", (width, height), _PAPER)
    top = _GAP_PX
    for row, row_height in zip(rows, heights, strict=True):
        for number, cell in enumerate(row):
            sheet.paste(cell, (_GAP_PX + number * (choices.width_px + _GAP_PX), top))
        top += row_height + _GAP_PX
    return sheet
