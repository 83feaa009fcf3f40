"""Prompt files whose rows are texts or objects: jsonl, json and yaml."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from diffbatch.errors import JobError
from diffbatch.job import yaml12
from diffbatch.job.sources.rows import WHAT, Objects, Row, Source
from diffbatch.job.textfile import decode_lines, open_bytes, read_text

_JSON_BYTES_MAX = 256 * 2**20
_BLANKS = re.compile(r"[ \t\r\n]*")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        doubled = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {doubled!r} comes twice; keep one")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def read_jsonl(source: Source) -> Iterator[Row]:
    take = Objects(source)
    parse = _DECODER.decode
    with open_bytes(source.path, source.shown, what=WHAT) as stream:
        for line, text in decode_lines(stream, source.shown, source.problems):
            if text.isspace():
                continue
            try:
                value = parse(text)
            except (ValueError, RecursionError) as error:
                _bad_json(source, line, error)
                continue
            row = take.row(value, line)
            if row is not None:
                yield row


def read_json(source: Source) -> Iterator[Row]:
    """A list of texts or objects, taken apart item by item so that each has its line."""
    instead = "use jsonl, which is read line by line"
    text = read_text(
        source.path, source.shown, what=WHAT, max_bytes=_JSON_BYTES_MAX, instead=instead
    )
    take = Objects(source)
    try:
        for value, line in _json_items(text):
            row = take.row(value, line)
            if row is not None:
                yield row
    except json.JSONDecodeError as error:
        _bad_json(source, error.lineno, error)
    except (ValueError, RecursionError) as error:
        _bad_json(source, 1, error)


def _json_items(text: str) -> Iterator[tuple[Any, int]]:
    def skip(at: int) -> int:
        found = _BLANKS.match(text, at)
        return found.end() if found else at

    at = skip(0)
    if text[at : at + 1] != "[":
        raise json.JSONDecodeError("not a list; a json file of prompts is one list", text, at)
    at, line, counted = skip(at + 1), 1, 0
    while text[at : at + 1] != "]":
        line, counted = line + text.count("\n", counted, at), at
        value, at = _DECODER.raw_decode(text, at)
        yield value, line
        at = skip(at)
        if text[at : at + 1] == ",":
            at = skip(at + 1)
        elif text[at : at + 1] != "]":
            raise json.JSONDecodeError("expected ',' or ']'", text, at)
    if skip(at + 1) != len(text):
        raise json.JSONDecodeError("text after the list", text, at + 1)


def _bad_json(source: Source, line: int, error: Exception) -> None:
    where = f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
    reason = getattr(error, "msg", None) or str(error)
    source.problems.add(f"{source.shown}:{line}", f"not valid JSON: {reason}{where}")


def read_yaml(source: Source) -> Iterator[Row]:
    document = yaml12.load_file(source.path, source.shown, what=WHAT)
    if not isinstance(document.value, list):
        raise JobError("not a list; a yaml file of prompts is one list", place=source.shown)
    take = Objects(source)
    for number, value in enumerate(document.value):
        line = document.lines[number,]
        comment = document.comments.get((number,)) or document.comments.get((number, "prompt"))
        if comment:
            message = f"YAML takes {comment!r} for a comment; quote the prompt"
            source.problems.add(f"{source.shown}:{line}", message)
        elif (row := take.row(value, line)) is not None:
            yield row
