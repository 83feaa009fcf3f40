"""The contact sheet: every finished picture in the job's order, whatever its format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diffbatch.errors import RunFolderError
from diffbatch.output.manifest import merge
from diffbatch.output.sheet import SheetChoices, check_replaceable, make_sheet, save_sheet
from diffbatch.output.writer import OutputWriter
from tests.unit.output_helpers import batch_of, config, make_req


def _run_folder(root: Path, files: list[str]) -> Path:
    """One picture per file, each of one colour that grows with its index; the last one fails."""
    reqs = [make_req(index, f"prompt {index} " * 30, file=file) for index, file in enumerate(files)]
    num_frames = [5 if file.endswith(("mp4", "webm", "gif")) else 1 for file in files]
    frames = [
        np.full((num, 32, 64, 3), 40 * index + 20, np.uint8) for index, num in enumerate(num_frames)
    ]
    with OutputWriter(config(root)) as writer:
        writer.put(batch_of(reqs, frames))
    merge(root)
    return root


def test_pictures_stand_in_order_with_their_colours(tmp_path: Path) -> None:
    files = ["0.png", "1.jpg", "2.webp", "3.mp4", "4.npy"]
    sheet = make_sheet(_run_folder(tmp_path, files), SheetChoices(columns=2, width_px=64))
    assert sheet.width == 2 * 64 + 3 * 8
    cell_height = 32 + 3 * 15 + 4
    for index in range(len(files)):
        row, column = divmod(index, 2)
        place = (8 + column * (64 + 8) + 32, 8 + row * (cell_height + 8) + 16)
        found = sheet.getpixel(place)
        assert np.allclose(found, 40 * index + 20, atol=4), files[index]


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no finished picture"):
        make_sheet(tmp_path, SheetChoices())


def test_a_sheet_that_no_viewer_opens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="more than 80000000; lower --width"):
        make_sheet(_run_folder(tmp_path, ["0.png"]), SheetChoices(width_px=20_000))


def test_only_a_sheet_is_overwritten(tmp_path: Path) -> None:
    folder = _run_folder(tmp_path / "run", ["0.png"])
    sheet = make_sheet(folder, SheetChoices())
    check_replaceable(tmp_path / "new.png")
    save_sheet(sheet, tmp_path / "new.png")
    check_replaceable(tmp_path / "new.png")
    with pytest.raises(RunFolderError, match="is no sheet of ours"):
        check_replaceable(folder / "0.png")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is no sheet of ours"):
        check_replaceable(tmp_path / "notes.txt")
