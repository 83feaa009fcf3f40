"""A job file and the command line, checked and put together: `load_job`.

Nothing beyond the job file is read here; prompt files and images are opened by `expand`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from diffbatch.errors import JobError
from diffbatch.job import yaml12
from diffbatch.job.explain import explain
from diffbatch.job.naming import NameTemplate, NameTemplateError, slugify
from diffbatch.job.overrides import CommandLine, apply, job_of_prompts
from diffbatch.job.places import Places
from diffbatch.job.problems import KeyPath, Problems
from diffbatch.job.spec import JobSpec, PromptEntry, Request

_NO_COMMAND_LINE = CommandLine()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A checked job. Everything in it is valid by itself; `expand` checks what it points to."""

    spec: JobSpec
    forced: Request  # from the command line; beats every entry
    forced_places: Mapping[str, str]  # of the values in `forced`, by name
    template: NameTemplate
    places: Places
    base: Path  # folder that `file` and `image` are relative to
    path: Path | None  # the job file, if there is one

    @property
    def output(self) -> Path:
        """The run folder, relative to the folder that the command runs in."""
        stem = self.path.stem if self.path else _stem_of(self.spec.prompts)
        return Path(self.spec.output or f"outputs/{stem}").expanduser()


def _stem_of(entries: Sequence[Any]) -> str:
    """A name that the same prompts get again, and other prompts do not."""
    prompts = [entry.prompt if isinstance(entry, PromptEntry) else str(entry) for entry in entries]
    digest = hashlib.blake2b("\0".join(prompts).encode(errors="replace"), digest_size=3)
    return f"{slugify(prompts[0])}-{digest.hexdigest()}"


def load_job(path: Path, command_line: CommandLine = _NO_COMMAND_LINE) -> Job:
    """Read a job file. Raises `JobError` with everything that is wrong in it."""
    shown = str(path)
    document = yaml12.load_file(path, shown, what="job file")
    if not isinstance(document.value, dict):
        raise JobError("a job file is a mapping with `model` and `prompts`", place=shown)
    places = Places(shown, lines=document.lines, typed=document.typed, comments=document.comments)
    return _check(document.value, places, command_line, path=path, base=path.absolute().parent)


def load_prompts(prompts: Sequence[str], command_line: CommandLine) -> Job:
    """A job made from prompts alone. `command_line.keys` must name the model."""
    data, places = job_of_prompts(prompts, command_line)
    return _check(data, places, command_line, path=None, base=Path.cwd())


def _check(
    data: dict[str, Any],
    places: Places,
    command_line: CommandLine,
    *,
    path: Path | None,
    base: Path,
) -> Job:
    apply(data, places, command_line)
    problems = Problems()
    _quote_comments(places, problems)
    _texts_of_with(data, places)
    try:
        spec = JobSpec.model_validate(data)
    except ValidationError as error:
        explain(error, problems, place=places.at, typed=places.typed)
    forced = _forced(command_line, problems)
    template = _template(data.get("name", JobSpec.model_fields["name"].default), places, problems)
    problems.raise_if_any()
    return Job(
        spec=spec,
        forced=forced,
        forced_places={name: command_line.place(name) for name in forced.given()},
        template=template,
        places=places,
        base=base,
        path=path,
    )


def _forced(command_line: CommandLine, problems: Problems) -> Request:
    given = {name: value for name, value in command_line.params.items() if value is not None}

    def place(path: KeyPath) -> str:
        return command_line.place(str(path[0]))

    try:
        return Request.model_validate(given)
    except ValidationError as error:
        explain(error, problems, place=place, typed={}, root=Request, with_path=False)
        return Request()


def _template(text: Any, places: Places, problems: Problems) -> NameTemplate:
    """Compile the name template; a wrong one is a problem, and the default stands in for it."""
    if isinstance(text, str):
        try:
            return NameTemplate(text)
        except NameTemplateError as error:
            problems.add(places.at(("name",)), f"name: {error}")
    return NameTemplate(JobSpec.model_fields["name"].default)


def _quote_comments(places: Places, problems: Problems) -> None:
    """`- the number #1 fan`: YAML drops the end of that prompt, and nobody would notice."""
    for path, comment in places.comments.items():
        if path[:1] == ("prompts",) and (len(path) == 2 or path[2] in {"prompt", "with"}):
            message = f"YAML takes {comment!r} for a comment; quote the prompt"
            problems.add(places.at(path), f"prompts[{path[1]}]: {message}")


def _texts_of_with(data: dict[str, Any], places: Places) -> None:
    """`with: {count: [1, 2]}` means the texts 1 and 2: kept where YAML changed nothing."""
    entries = data.get("prompts")
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        lists = entry.get("with") if isinstance(entry, dict) else None
        for key, values in lists.items() if isinstance(lists, dict) else ():
            if not isinstance(values, list):
                continue
            for at, value in enumerate(values):
                typed = places.typed.get(("prompts", number, "with", key, at))
                if type(value) is int and str(value) == typed:
                    values[at] = typed
