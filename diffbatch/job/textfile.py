"""Reading text that users made with any editor: UTF-8 with or without BOM, LF or CRLF.

Never the platform's codec, so a job reads the same under cron, in a container and on a desk.
A byte that is not UTF-8 is an error with file, line and column.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from diffbatch.errors import JobError
from diffbatch.job.problems import Problems, nearest

_NUM_HEAD_BYTES = 1024


def open_bytes(path: Path, shown: str, *, what: str) -> BinaryIO:
    """Open `path` behind its BOM. `shown` is the name that messages use, `what` the file's role."""
    check_is_file(path, shown, what=what)
    try:
        stream = path.open("rb")
    except OSError as error:
        raise JobError(f"cannot read the {what}: {error.strerror}", place=shown) from error
    head = stream.read(_NUM_HEAD_BYTES)
    if not head:
        stream.close()
        raise JobError(f"the {what} is empty", place=shown)
    encoding = _other_encoding(head)
    if encoding:
        stream.close()
        raise JobError(f"this is {encoding} text; save the {what} as UTF-8", place=shown)
    stream.seek(len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0)
    return stream


def check_is_file(path: Path, shown: str, *, what: str) -> None:
    """A missing file is an error that names the path tried and the nearest name in its folder."""
    if path.is_file():
        return
    if path.is_dir():
        raise JobError(f"the {what} is a folder: {path}", place=shown)
    folder = path.parent
    if not folder.is_dir():
        raise JobError(f"the {what} does not exist: no folder {folder}", place=shown)
    near = nearest(path.name, sorted(os.listdir(folder)))
    hint = f"; did you mean {near!r}?" if near else ""
    raise JobError(f"the {what} does not exist: {path}{hint}", place=shown)


def read_text(path: Path, shown: str, *, what: str, max_bytes: int, instead: str) -> str:
    """The text of a file that has to be read at once; `instead` is the advice if it is too big."""
    with open_bytes(path, shown, what=what) as stream:
        raw = stream.read(max_bytes + 1)
    if len(raw) > max_bytes:
        limit = f"{max_bytes // 2**20} MiB"
        raise JobError(f"the {what} is larger than {limit}; {instead}", place=shown)
    lines = raw.splitlines(keepends=True) if not _is_utf8(raw) else [raw]
    return "".join(decode(line, shown, number) for number, line in enumerate(lines, 1))


def decode_lines(stream: BinaryIO, shown: str, problems: Problems) -> Iterator[tuple[int, str]]:
    """Numbered lines, newline kept. A line that is not UTF-8 is reported and left out."""
    for number, raw in enumerate(stream, 1):
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            try:
                decode(raw, shown, number)
            except JobError as error:
                problems.add_error(error)
            continue
        yield number, text


def decode(raw: bytes, shown: str, line: int) -> str:
    """`raw` as UTF-8, or an error that says where and which byte."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        column = len(raw[: error.start].decode()) + 1
        byte = f"0x{raw[error.start]:02X}"
        raise JobError(
            f"byte {byte} at column {column} is not UTF-8; save the file as UTF-8",
            place=f"{shown}:{line}",
        ) from error


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _other_encoding(head: bytes) -> str | None:
    """The name of an encoding that is certainly not UTF-8: by its BOM, or by its NUL bytes."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in head:
        return "UTF-16" if len(head.rstrip(b"\0")) > 1 else "binary"
    return None
