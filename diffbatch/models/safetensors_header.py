"""Read what a safetensors file holds without reading its weights.

Format (https://huggingface.co/docs/safetensors): 8 bytes little-endian header length, then a JSON
object name -> {dtype, shape, data_offsets}, offsets relative to the end of the header.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from diffbatch.errors import PlanError

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_SAMPLE_BYTES = 256  # of each tensor, for the fingerprint


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file; `begin` and `end` are byte offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def num_params(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def read_header(path: Path) -> tuple[TensorEntry, ...]:
    """The tensors of `path` in file order. A damaged file is a PlanError that names it."""
    with path.open("rb") as file:
        return _entries(path, file)


def sample_digest(path: Path) -> str:
    """A hash over the header and the first bytes of every tensor of `path`.

    Any training or merge changes nearly every element of a tensor it touches, so this tells two
    checkpoints apart while reading almost nothing.
    """
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        for entry in _entries(path, file):
            digest.update(f"{entry.name}|{entry.dtype}|{entry.shape}|".encode())
            file.seek(entry.begin)
            digest.update(file.read(min(_SAMPLE_BYTES, entry.end - entry.begin)))
    return digest.hexdigest()


def _entries(path: Path, file: BinaryIO) -> tuple[TensorEntry, ...]:
    try:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"header of {length} bytes")
        header = json.loads(file.read(length))
        start = 8 + length
        entries = [
            TensorEntry(
                name,
                value["dtype"],
                tuple(value["shape"]),
                start + value["data_offsets"][0],
                start + value["data_offsets"][1],
            )
            for name, value in header.items()
            if name != "__metadata__"
        ]
    except (struct.error, ValueError, LookupError, TypeError, AttributeError) as error:
        raise PlanError(
            f"not a whole safetensors file ({error}); download or save the model again",
            place=str(path),
        ) from error
    entries.sort(key=lambda entry: entry.begin)
    size = path.stat().st_size
    if entries and entries[-1].end > size:
        raise PlanError(
            f"the file has {size} bytes but its header says {entries[-1].end}: it is cut short; "
            "download or save the model again",
            place=str(path),
        )
    return tuple(entries)
