"""Every error that a user can cause.

    DiffbatchError            base; carries the exit code
    +-- JobError              the job file, a prompt source or a command-line value
    +-- PlanError             a valid job that cannot run here: sizes, layout, model folder
    +-- RunFolderError        the run folder is in use, damaged or not ours
    +-- ReqError              one request cannot be made; becomes a failed record, the run goes on
    +-- WorkerError           a worker process died or could not start

A message says what is wrong, the value found, the rule and the way out. Problems that can be found
together are reported together: `DiffbatchError.problems` is the list, one line each.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

EXIT_OK = 0
EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_SOME_FAILED = 3
EXIT_INTERRUPTED = 75


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: `place` is `file:line` or a job path such as `prompts[3].seed`."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class DiffbatchError(Exception):
    """Base of every error that ends a command with a message and no traceback."""

    exit_code = EXIT_INTERNAL

    def __init__(self, message: str | Sequence[Problem], *, place: str = "") -> None:
        if isinstance(message, str):
            self.problems: tuple[Problem, ...] = (Problem(place, message),)
        else:
            self.problems = tuple(message)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class JobError(DiffbatchError):
    """The job file, a prompt source or a command-line value is wrong."""

    exit_code = EXIT_USAGE


class PlanError(DiffbatchError):
    """The job is well formed but cannot run: size, layout, model folder."""

    exit_code = EXIT_USAGE


class RunFolderError(DiffbatchError):
    """The run folder is held by another run, or is not a run folder."""

    exit_code = EXIT_USAGE


class ReqError(DiffbatchError):
    """One request cannot be made. Every rank of its replica raises it at the same point."""


class WorkerError(DiffbatchError):
    """A worker process died, or the group could not be started."""


def describe(error: BaseException) -> str:
    """Class and text of `error`; where it has no text, the line that raised it."""
    name = type(error).__name__
    if text := str(error).strip():
        return f"{name}: {text}"
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return name
    last = frames[-1]
    return f"{name} at {_short_path(last.filename)}:{last.lineno}: {last.line}"


def _short_path(filename: str) -> str:
    """`diffusers/models/x.py`: from the package on."""
    parts = Path(filename).parts
    if "site-packages" in parts:
        return "/".join(parts[parts.index("site-packages") + 1 :])
    return "/".join(parts[-3:])
