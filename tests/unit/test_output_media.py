from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from diffbatch.errors import ReqError
from diffbatch.output.embed import Embedded, embedded
from diffbatch.output.formats import FORMATS
from diffbatch.output.media import check_whole, is_flat, write_media
from tests.unit.output_helpers import HARD_PROMPT, ffmpeg, frames_of, make_req

PICTURES = ["png", "jpg", "webp"]
CLIPS = ["mp4", "webm", "gif"]


def smooth_frames(num_frames: int, height: int = 48, width: int = 64) -> np.ndarray:
    """A moving gradient: what lossy codecs are made for."""
    y, x = np.mgrid[0:height, 0:width]
    frames = [np.stack([x * 3 + 4 * k, y * 4, (x + y) * 2], -1) for k in range(num_frames)]
    return np.clip(np.stack(frames), 0, 255).astype(np.uint8)


def meta_for(**changes: Any) -> Embedded:
    req = make_req(prompt=HARD_PROMPT, negative_prompt="blurry, 低质量", **changes)
    return embedded(req, "Tiny: a, b", 48, 64)


def write(tmp_path: Path, suffix: str, num_frames: int, **changes: Any) -> Path:
    path = tmp_path / f"out.{suffix}"
    write_media(path, smooth_frames(num_frames), meta_for(**changes), fps=12)
    check_whole(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    return path


def decode(path: Path, num_frames: int) -> np.ndarray:
    raw = path.with_suffix(".raw")
    args = ["-v", "error", "-i", str(path), "-fps_mode", "passthrough", "-pix_fmt", "rgb24"]
    result = ffmpeg(*args, "-f", "rawvideo", str(raw))
    assert result.returncode == 0, result.stderr
    return np.fromfile(raw, np.uint8).reshape(num_frames, 48, 64, 3)


def tags_of(path: Path) -> dict[str, str]:
    """The container's tags through ffmpeg, unescaped; names in lower case."""
    text = ffmpeg("-v", "error", "-i", str(path), "-f", "ffmetadata", "-").stdout
    pairs = re.findall(r"^(\w+)=((?:[^\n\\]|\\.|\\\n)*)$", text, re.MULTILINE)
    return {name.lower(): re.sub(r"\\(.)", r"\1", value, flags=re.S) for name, value in pairs}


@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_lossless_pictures_keep_every_pixel(tmp_path: Path, suffix: str) -> None:
    with Image.open(write(tmp_path, suffix, 1)) as image:
        assert np.array_equal(np.asarray(image), smooth_frames(1)[0])


def test_jpg_is_close_and_keeps_full_colour_resolution(tmp_path: Path) -> None:
    with Image.open(write(tmp_path, "jpg", 1)) as image:
        difference = np.asarray(image).astype(int) - smooth_frames(1)[0]
        assert np.abs(difference).mean() < 2
        assert [layer[1:3] for layer in image.layer] == [(1, 1)] * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("suffix", CLIPS)
def test_clips_keep_frames_size_rate_and_look(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix, 9)
    said = ffmpeg("-i", str(path)).stderr
    assert "64x48" in said
    decoded = decode(path, 9)
    assert np.abs(decoded.astype(int) - smooth_frames(9)).mean() < (12 if suffix == "gif" else 4)
    if suffix != "gif":
        assert "yuv420p(tv, bt709" in said
        assert "12 fps" in said
    assert "Duration: 00:00:00.7" in said


@pytest.mark.parametrize("num_frames", [1, 5])
@pytest.mark.parametrize("suffix", CLIPS)
def test_equal_frames_are_all_kept(tmp_path: Path, suffix: str, num_frames: int) -> None:
    path = tmp_path / f"flat.{suffix}"
    write_media(path, np.full((num_frames, 48, 64, 3), 128, np.uint8), meta_for(), fps=24)
    assert np.abs(decode(path, num_frames).astype(int) - 128).max() <= 3


def test_mp4_can_start_before_it_is_loaded(tmp_path: Path) -> None:
    data = write(tmp_path, "mp4", 5).read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    assert b"avc1" in data


def test_npy_round_trips(tmp_path: Path) -> None:
    assert np.array_equal(np.load(write(tmp_path, "npy", 3)), smooth_frames(3))


def test_png_carries_the_parameters_readable_and_as_json(tmp_path: Path) -> None:
    with Image.open(write(tmp_path, "png", 1)) as image:
        texts = dict(image.text)  # type: ignore[attr-defined]
    assert texts["parameters"] == (
        f"{HARD_PROMPT}\nNegative prompt: blurry, 低质量\n"
        'Steps: 4, CFG scale: 4.0, Seed: 7, Size: 64x48, Model: "Tiny: a, b"'
    )
    values = json.loads(texts["diffbatch"])
    assert values["prompt"] == HARD_PROMPT
    assert values["seed"] == 7
    assert values["model"] == "Tiny: a, b"
    assert values["params"]["num_inference_steps"] == 4


def test_plain_prompts_use_the_chunk_that_every_reader_knows(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    write_media(path, smooth_frames(1), embedded(make_req(), "tiny", 48, 64))
    data = path.read_bytes()
    assert data.count(b"tEXt") == 2
    assert b"iTXt" not in data


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_exif_carries_the_parameters(tmp_path: Path, suffix: str) -> None:
    with Image.open(write(tmp_path, suffix, 1)) as image:
        exif = image.getexif()
    comment = exif.get_ifd(0x8769)[0x9286]
    assert comment[:8] == b"UNICODE\0"
    assert comment[8:].decode("utf-16-be") == meta_for().text
    assert json.loads(exif[0x010E]) == meta_for().values


@pytest.mark.parametrize("suffix", CLIPS)
def test_clips_carry_the_parameters(tmp_path: Path, suffix: str) -> None:
    tags = tags_of(write(tmp_path, suffix, 5))
    assert json.loads(tags["comment"]) == meta_for().values
    if suffix != "gif":
        assert tags["title"].startswith('say "hi", 一只猫 🌟; x=1 #c \\ back second line')


@pytest.mark.parametrize("suffix", [*PICTURES, *CLIPS])
def test_a_prompt_longer_than_a_segment_or_an_argument(tmp_path: Path, suffix: str) -> None:
    prompt = "猫🌟" * 100_000
    path = tmp_path / f"long.{suffix}"
    write_media(path, smooth_frames(1), embedded(make_req(prompt=prompt), "tiny", 48, 64), 12)
    if suffix == "png":
        with Image.open(path) as image:
            assert image.text["parameters"].startswith(prompt)  # type: ignore[attr-defined]
    elif suffix == "jpg":
        with Image.open(path) as image:
            values = json.loads(image.getexif()[0x010E])
            assert values["cut"] is True
            assert prompt.startswith(values["prompt"])
    elif suffix in CLIPS:
        assert json.loads(tags_of(path)["comment"])["prompt"] == prompt


def test_equal_requests_give_equal_bytes(tmp_path: Path) -> None:
    """Whatever the name, index, folder and second; the start image counts by its content."""
    contents: dict[str, bytes] = {}
    for name, index, start in (("a", 0, "/data/x.png"), ("other-name", 9, "/else/y.png")):
        for suffix, form in FORMATS.items():
            file = f"{name}.{suffix}"
            req = make_req(index, HARD_PROMPT, file, image=start, image_sha256="ab" * 32)
            path = tmp_path / name / file
            path.parent.mkdir(exist_ok=True)
            write_media(
                path, smooth_frames(form.num_frames or 5), embedded(req, "tiny", 48, 64), 12
            )
            data = path.read_bytes()
            assert contents.setdefault(suffix, data) == data, suffix
            assert str(tmp_path).encode() not in data
            assert start.encode() not in data
        time.sleep(1.1)  # containers keep time in seconds


def test_the_second_of_two_equal_requests_gets_an_equal_file() -> None:
    req = make_req()
    again = replace(req, id=f"{req.id}-1", index=1, file="00001.png")
    assert embedded(req, "tiny", 16, 16) == embedded(again, "tiny", 16, 16)


def test_odd_sizes_are_never_rescaled(tmp_path: Path) -> None:
    odd = smooth_frames(3, height=33)
    for suffix in ("mp4", "webm"):
        with pytest.raises(ReqError, match="nearest: 32 or 34"):
            write_media(tmp_path / f"a.{suffix}", odd, meta_for(), 12)
    write_media(tmp_path / "a.gif", odd, meta_for(), 12)
    with Image.open(tmp_path / "a.gif") as image:
        assert image.size == (64, 33)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.gif"]


@pytest.mark.parametrize(
    ("name", "frames", "message"),
    [
        ("a.bmp", frames_of("x"), "no format 'bmp'"),
        ("a.png", frames_of("x", 2), "clip of 2 frames"),
        ("a.png", frames_of("x").astype(np.float32), "float32"),
        ("a.png", frames_of("x")[0], "expected uint8 of shape"),
    ],
)
def test_what_no_format_can_hold_is_an_error(
    tmp_path: Path, name: str, frames: np.ndarray, message: str
) -> None:
    with pytest.raises(ReqError, match=message):
        write_media(tmp_path / name, frames, meta_for(), 12)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [*PICTURES, "gif"])
def test_a_cut_file_is_noticed(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix, 1)
    data = path.read_bytes()
    path.write_bytes(b"" if suffix == "webp" else data[: len(data) // 2])
    with pytest.raises(OSError, match=f"not a complete {suffix}"):
        check_whole(path)


def test_flat() -> None:
    frames = np.full((3, 8, 8, 3), (1, 2, 3), np.uint8)
    assert is_flat(frames)
    frames[2, 7, 7, 1] += 1
    assert not is_flat(frames)
