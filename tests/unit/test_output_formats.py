from __future__ import annotations

import subprocess
import sys

import pytest

from diffbatch.output.formats import FORMATS, check_frames, check_size, suffix_of
from diffbatch.output.layout import is_reserved, is_temp, temp_name


@pytest.mark.parametrize("suffix", FORMATS)
def test_an_even_size_fits_every_format(suffix: str) -> None:
    assert check_size(suffix, 480, 832) is None


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "npy"])
def test_an_odd_size_fits_formats_without_subsampling(suffix: str) -> None:
    assert check_size(suffix, 1, 333) is None


@pytest.mark.parametrize("suffix", ["mp4", ".webm"])
def test_an_odd_size_is_refused_with_the_nearest_legal_ones(suffix: str) -> None:
    message = check_size(suffix, 481, 832)
    assert message is not None
    assert "height 481 (nearest: 480 or 482)" in message
    assert "width" not in message
    assert "width 1 (nearest: 2)" in str(check_size(suffix, 2, 1))


def test_a_side_beyond_the_format_is_refused() -> None:
    assert "width 20000 (nearest: 16383)" in str(check_size("webp", 64, 20_000))
    assert "height 20001 (nearest: 16384)" in str(check_size("mp4", 20_001, 64))
    assert "height 0 (nearest: 1)" in str(check_size("png", 0, 64))


def test_a_clip_does_not_fit_a_picture_format() -> None:
    assert "17 frames" in str(check_frames("png", 17))
    assert check_frames("mp4", 17) is None
    assert check_frames("png", 1) is None
    assert check_frames("mp4", 1) is None
    assert "at least 1" in str(check_frames("mp4", 0))


def test_suffix_of() -> None:
    assert suffix_of("a.b/c.PNG") == "png"
    assert suffix_of("a.b/c") == ""


def test_reserved_names() -> None:
    for name in (
        "run.json",
        "Manifest.jsonl",
        "manifest/x.png",
        "retired/a.png",
        "profile/a.png",
        "a/.tmp-b.png",
    ):
        assert is_reserved(name), name
    for name in ("00000-a.png", "samples/manifest.jsonl.png", "a/run.json"):
        assert not is_reserved(name), name
    assert is_temp(temp_name("replica-0", 12, 3, "mp4"))
    assert is_temp(temp_name("replica-0", 12, 3, "mp4") + ".meta")
    assert not is_temp(".tmp-mine")


def test_the_plan_side_imports_no_numpy_no_pillow_no_torch() -> None:
    code = (
        "import sys, diffbatch.output.formats, diffbatch.output.folder;"
        "bad = {'numpy', 'PIL', 'torch', 'imageio_ffmpeg'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
