"""Prompt files with columns: csv, tsv and parquet."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any, get_args

from diffbatch.errors import JobError
from diffbatch.job.sources.rows import WHAT, Row, Source, is_prompt, pick_column
from diffbatch.job.spec import Request, known_keys
from diffbatch.job.textfile import check_is_file, decode_lines, open_bytes

_FIELD_CHARS_MAX = 16 * 2**20  # one csv field; an unclosed quote would swallow the whole file
_PARQUET_ROWS_PER_BATCH = 1024
_QUOTING = '"a ""quoted"" word"'
TEXT_ONLY = frozenset({"csv", "tsv"})  # formats whose cells are text, whatever they mean
_TYPED_COLUMNS = frozenset(known_keys(Request))


def read_csv(source: Source, delimiter: str = ",") -> Iterator[Row]:
    """Quotes have to be right: `"STOP" in red` would otherwise lose its quotes in silence."""
    csv.field_size_limit(_FIELD_CHARS_MAX)
    shown, problems = source.shown, source.problems
    with open_bytes(source.path, shown, what=WHAT) as stream:
        lines = (text for _, text in decode_lines(stream, shown, problems))
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        header: list[str] | None = None
        column = ""
        line = 1  # where the row starts; reader.line_num is where it ends
        try:
            for fields in reader:
                if header is None and fields:
                    header = _header(fields, shown)
                    column = _prompt_column(header, source.column, shown)
                elif header is not None and len(fields) == len(header):
                    columns = dict(zip(header, fields, strict=True))
                    prompt = columns.pop(column)
                    if is_prompt(prompt, column, f"{shown}:{line}", problems):
                        yield Row(prompt, columns, line)
                elif header is not None and fields:
                    counts = f"{len(fields)} fields, the header has {len(header)}"
                    remedy = "quote a field that holds the separator"
                    problems.add(f"{shown}:{line}", f"this row has {counts}; {remedy}")
                line = reader.line_num + 1
        except csv.Error as error:
            problems.add(f"{shown}:{line}", f"{error}; write a field with quotes as {_QUOTING}")


def read_tsv(source: Source) -> Iterator[Row]:
    return read_csv(source, "\t")


def _prompt_column(header: list[str], wanted: str | None, shown: str) -> str:
    """As `pick_column`; a lone first cell must look like a name, or a prompt would get lost."""
    name = header[0]
    if wanted is None and len(header) == 1 and name not in {"prompt", "Prompt"}:
        if any(mark in name for mark in ";\t|,"):
            remedy = "save it with commas as csv, or with tabs as tsv"
            raise JobError(f"the header {name!r} has another separator; {remedy}", place=shown)
        if len(name.split()) != 1:
            remedy = "add a first line `prompt`, or say column: for this name"
            raise JobError(f"is the first line {name!r} a prompt? {remedy}", place=shown)
    return pick_column(header, wanted, shown)


def _header(fields: list[str], shown: str) -> list[str]:
    names = [field.strip() for field in fields]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise JobError(f"two columns are called {doubled!r}; rename one", place=f"{shown}:1")
    return names


def read_parquet(source: Source) -> Iterator[Row]:
    check_is_file(source.path, source.shown, what=WHAT)
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        remedy = "pip install 'diffbatch[parquet]'"
        raise JobError(f"parquet files need pyarrow; {remedy}", place=source.shown) from error
    try:
        table = pyarrow.parquet.ParquetFile(source.path)
        names = list(table.schema_arrow.names)
        column = pick_column(names, source.column, source.shown)
        keep = [name for name in names if name == column or name in source.wanted]
        line = 0
        for batch in table.iter_batches(_PARQUET_ROWS_PER_BATCH, columns=keep):
            for columns in batch.to_pylist():
                line += 1
                prompt = columns.pop(column)
                place = f"{source.shown}:{line}"
                if is_prompt(prompt, column, place, source.problems):
                    yield Row(prompt, _without_nulls(columns), line)
    except (pyarrow.ArrowException, OSError) as error:
        raise JobError(f"not a readable parquet file: {error}", place=source.shown) from error


def _without_nulls(columns: dict[str, Any]) -> dict[str, Any]:
    """Tables mark a missing value by null or NaN, and then store whole numbers as floats."""
    found = {}
    for name, value in columns.items():
        if value is None or value != value:  # NaN differs from itself
            continue
        is_whole = name in _TYPED_COLUMNS and isinstance(value, float) and value.is_integer()
        found[name] = int(value) if is_whole else value
    return found


def parse_texts(columns: dict[str, str]) -> dict[str, Any]:
    """Text cells as the types of the parameters they override; an empty cell gives nothing.

    What is no number stays text, and the check of types then says so.
    """
    return {name: _parse_text(name, text) for name, text in columns.items() if text.strip()}


def _parse_text(name: str, text: str) -> Any:
    kind = _KINDS[name]
    try:
        return text if kind is str else kind(text)
    except ValueError:
        return text


def _kind(name: str) -> type:
    """What a column holds, from its annotation in the job file's model."""
    kinds = get_args(Request.model_fields[name].annotation)
    return next((kind for kind in (str, float) if kind in kinds), int)


_KINDS = {name: _kind(name) for name in known_keys(Request)}
