"""Frames to mp4 (H.264), webm (VP9) and gif, through the ffmpeg that imageio-ffmpeg ships.

ffmpeg is called directly: every option that decides bytes stands here. One thread, bit-exact
muxers and the CPU-independent encoder paths make the file a function of pixels and parameters.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import imageio_ffmpeg

from diffbatch.errors import ReqError
from diffbatch.output.embed import Embedded

if TYPE_CHECKING:
    from diffbatch.req import Frames

_TIMEOUT_S = 3600
# RGB to BT.709 with limited range, and said so in the stream: players do not have to guess.
_YUV = (
    "-vf scale=out_color_matrix=bt709:out_range=tv"
    ":flags=bicubic+accurate_rnd+full_chroma_int+bitexact,format=yuv420p"
    ",setparams=color_primaries=bt709:color_trc=bt709 -pix_fmt yuv420p"
)
_H264 = "-c:v libx264 -preset medium -crf 17 -x264-params cpu-independent=1:threads=1"
_VP9 = "-c:v libvpx-vp9 -crf 20 -b:v 0 -deadline good -cpu-used 3 -row-mt 0"
_PALETTE = "split[a][b];[a]palettegen=stats_mode=full[p];[b][p]paletteuse=dither=bayer"
_OPTIONS = {
    "mp4": f"{_YUV} {_H264} -movflags +faststart -f mp4",
    "webm": f"{_YUV} {_VP9} -f webm",
    "gif": f"-vf {_PALETTE} -c:v gif -loop 0 -f gif",
}
_EXACT = "-map 0:v:0 -map_metadata 1 -fflags +bitexact -flags:v +bitexact -threads 1"
# The device's fault, not the request's: a rerun may well succeed.
_DEVICE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.ENOMEM)


def write_video(path: Path, frames_FHWC: Frames, fps: int, meta: Embedded) -> None:
    """Write a whole file at `path`, whose suffix names the format. Nothing else is created."""
    suffix = path.suffix.lstrip(".")
    tags = path.with_name(path.name + ".meta")
    text = _ffmetadata({"title": meta.title, "comment": meta.json()})
    try:
        tags.write_text(text, encoding="utf-8")
        _run_ffmpeg(_command(path, tags, suffix, fps, frames_FHWC.shape[1:3]), frames_FHWC, suffix)
    finally:
        tags.unlink(missing_ok=True)
    if suffix == "gif":
        path.write_bytes(_with_gif_comment(path.read_bytes(), meta.json().encode()))


def _command(path: Path, tags: Path, suffix: str, fps: int, size: tuple[int, ...]) -> list[str]:
    height, width = size
    before = (
        "-hide_banner -nostdin -loglevel error -y -filter_threads 1 -threads 1 -f rawvideo "
        f"-pixel_format rgb24 -video_size {width}x{height} -framerate {fps} -i pipe:0 -f ffmetadata"
    )
    return [
        imageio_ffmpeg.get_ffmpeg_exe(),
        *before.split(),
        "-i",
        f"file:{tags.absolute()}",
        *f"{_EXACT} {_OPTIONS[suffix]}".split(),
        f"file:{path.absolute()}",
    ]


def _run_ffmpeg(command: list[str], frames: Frames, suffix: str) -> None:
    """Apart from the terminal, so that Ctrl-C lets the file in progress be finished."""
    try:
        result = subprocess.run(
            command,
            input=frames.data.cast("B"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, f"ffmpeg took more than {_TIMEOUT_S} s") from error
    if result.returncode == 0:
        return
    said = result.stderr.decode(errors="replace").strip()
    if result.returncode < 0:
        raise OSError(errno.ECHILD, f"ffmpeg was ended by signal {-result.returncode}")
    for code in _DEVICE_ERRORS:
        if os.strerror(code) in said:
            raise OSError(code, os.strerror(code))
    raise ReqError(f"ffmpeg could not write {suffix}: {' | '.join(said.splitlines()[-3:])}")


def _ffmetadata(tags: dict[str, str]) -> str:
    """A file, not arguments: a prompt may be longer than an argument can be."""
    lines = [";FFMETADATA1"]
    for name, value in tags.items():
        escaped = "".join(f"\\{c}" if c in "=;#\\\n" else c for c in value)
        lines.append(f"{name}={escaped}")
    return "\n".join(lines) + "\n"


def _with_gif_comment(data: bytes, comment: bytes) -> bytes:
    """ffmpeg writes no comment into a gif: insert one behind the header and global palette."""
    flags = data[10]
    start = 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
    blocks = (comment[i : i + 255] for i in range(0, len(comment), 255))
    extension = b"\x21\xfe" + b"".join(bytes([len(b)]) + b for b in blocks) + b"\0"
    return data[:start] + extension + data[start:]
