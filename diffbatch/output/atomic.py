"""Files that are there whole or not at all, also after a crash."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path


def write_atomic(path: Path, chunks: Iterable[bytes]) -> None:
    """Replace `path` by these bytes: temporary name, fsync, rename, fsync of the folder."""
    temp = path.with_name(f".{path.name}.new")
    try:
        with temp.open("wb", buffering=1 << 20) as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        temp.replace(path)
    finally:
        temp.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Bring the bytes of `path` to the device."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Bring the names in `path` to the device."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def file_sha256(path: Path) -> str:
    """Hex digest of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
