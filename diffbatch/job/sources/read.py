"""Open a prompt file by its format and stream its rows.

Readers hold one row at a time (json and yaml, which are read whole, have a size limit), report a
bad row and go on with the next one. Only the declared format interprets anything: a txt line is
the prompt, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from diffbatch.errors import JobError
from diffbatch.job.problems import Problems
from diffbatch.job.sources import tables, trees
from diffbatch.job.sources.rows import WHAT, Row, Source
from diffbatch.job.textfile import decode_lines, open_bytes

_BY_SUFFIX = {
    ".txt": "txt",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".parquet": "parquet",
}
FORMATS = tuple(dict.fromkeys(_BY_SUFFIX.values()))


def format_of(path: Path, shown: str) -> str:
    """The source format that the file's suffix stands for."""
    found = _BY_SUFFIX.get(path.suffix.lower())
    if found is None:
        formats = ", ".join(FORMATS)
        raise JobError(
            f"no format has the suffix {path.suffix!r}; add format: {formats}", place=shown
        )
    return found


def read_rows(source: Source, source_format: str) -> Iterator[Row]:
    """The rows of a file in order. Raises `JobError` when the file as a whole cannot be used."""
    num_rows, num_before = 0, len(source.problems)
    for row in _READERS[source_format](source):
        num_rows += 1
        yield row
    if not num_rows and len(source.problems) == num_before:
        raise JobError("there are no prompts in this file", place=source.shown)


def read_txt_stream(stream: BinaryIO, shown: str) -> list[str]:
    """One prompt a line, such as from stdin."""
    problems = Problems()
    prompts = [row.prompt for row in _txt_rows(stream, shown, problems)]
    problems.raise_if_any()
    if not prompts:
        raise JobError("no prompts came in; write one a line", place=shown)
    return prompts


def _txt(source: Source) -> Iterator[Row]:
    with open_bytes(source.path, source.shown, what=WHAT) as stream:
        yield from _txt_rows(stream, source.shown, source.problems)


def _txt_rows(stream: BinaryIO, shown: str, problems: Problems) -> Iterator[Row]:
    for line, text in decode_lines(stream, shown, problems):
        if not text.isspace():
            yield Row(text.removesuffix("\n").removesuffix("\r"), {}, line)


_READERS: Mapping[str, Callable[[Source], Iterator[Row]]] = {
    "txt": _txt,
    "csv": tables.read_csv,
    "tsv": tables.read_tsv,
    "jsonl": trees.read_jsonl,
    "json": trees.read_json,
    "yaml": trees.read_yaml,
    "parquet": tables.read_parquet,
}
