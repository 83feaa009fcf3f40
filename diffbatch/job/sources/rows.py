"""What every reader of prompt files shares: the row, the file's description, the prompt column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from diffbatch.errors import JobError
from diffbatch.job.problems import Problems, nearest

WHAT = "prompt file"


class Row(NamedTuple):
    """One prompt of a file. `line` counts from 1: lines of the file, rows of a parquet file."""

    prompt: str
    columns: Mapping[str, Any]
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A prompt file. `shown` is its name in messages, `wanted` the columns worth reading."""

    path: Path
    shown: str
    problems: Problems
    column: str | None = None
    wanted: frozenset[str] = frozenset()


class Objects:
    """Rows from JSON-like values: texts, or objects whose prompt has the same key throughout."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._column: str | None = None

    def row(self, value: Any, line: int) -> Row | None:
        source = self._source
        if isinstance(value, dict):
            if self._column is None:
                self._column = pick_column(list(value), source.column, source.shown)
            prompt = value.pop(self._column, None)
            place = f"{source.shown}:{line}"
            if is_prompt(prompt, self._column, place, source.problems):
                return Row(prompt, value, line)
        elif isinstance(value, str):
            if is_prompt(value, None, f"{source.shown}:{line}", source.problems):
                return Row(value, {}, line)
        else:
            message = f"{value!r:.60} is not text and not an object with a prompt; quote a prompt"
            source.problems.add(f"{source.shown}:{line}", message)
        return None


def is_prompt(value: Any, column: str | None, place: str, problems: Problems) -> bool:
    """Whether a row has a prompt; if not, that is reported. An empty one is never left out."""
    if isinstance(value, str) and value and not value.isspace():
        return True
    if value is None or isinstance(value, str):
        where = "" if column is None else f" in column {column!r}"
        problems.add(place, f"no prompt{where}; write one or remove the row")
    else:
        problems.add(place, f"the prompt {value!r:.60} is not text; quote it")
    return False


def pick_column(columns: Iterable[str], wanted: str | None, shown: str) -> str:
    """The column that holds the prompt: the one asked for, else `prompt`, else the only one."""
    names = list(columns)
    listed = ", ".join(names)
    if wanted is not None:
        if wanted in names:
            return wanted
        near = nearest(wanted, names)
        hint = f"; did you mean {near!r}?" if near else ""
        raise JobError(f"no column {wanted!r}, only {listed}{hint}", place=shown)
    for name in ("prompt", "Prompt"):
        if name in names:
            return name
    if len(names) == 1:
        return names[0]
    raise JobError(f"which column is the prompt? add column: one of {listed}", place=shown)
