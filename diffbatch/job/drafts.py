"""Entries of a job as a stream of drafts: one prompt with its parameters, before its seeds.

Precedence: command line, then entry (and the row of a file before its entry), then `defaults`,
then the model's own values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from diffbatch.errors import JobError
from diffbatch.job.explain import explain
from diffbatch.job.load import Job
from diffbatch.job.problems import Problems
from diffbatch.job.products import PlaceholderError, prompts_of
from diffbatch.job.resolve import Resolved, Resolver, absolute_image
from diffbatch.job.sources.read import format_of, read_rows
from diffbatch.job.sources.rows import WHAT, Row, Source
from diffbatch.job.sources.tables import TEXT_ONLY, parse_texts
from diffbatch.job.spec import SEED_MAX, FileEntry, Params, PromptEntry, Request, known_keys
from diffbatch.job.textfile import check_is_file

_DEFAULT_SEED = 0
_DEFAULT_NUM_OUTPUTS = 1
_ROW_KEYS = frozenset(known_keys(Request))  # columns with these names override fields
_NO_COLUMNS: Mapping[str, Any] = {}


class Draft(NamedTuple):
    """A prompt and what all its requests share. They have the seeds `s .. s + num_outputs - 1`."""

    prompt: str
    seeds: tuple[int, ...]
    num_outputs: int
    resolved: Resolved
    columns: Mapping[str, Any]  # for the name: columns of the row, or what `with` chose
    shown: str  # the prompt file, or the whole place when `line` is 0
    line: int

    @property
    def place(self) -> str:
        return f"{self.shown}:{self.line}" if self.line else self.shown


def drafts(
    job: Job, model_defaults: Mapping[str, Any], resolver: Resolver, problems: Problems
) -> Iterator[Draft]:
    """All drafts of a job in the order of the file. An entry that is wrong is reported and left."""
    layers = _Layers(job, model_defaults, resolver, problems)
    for number, entry in enumerate(job.spec.prompts):
        place = job.places.at(("prompts", number))
        if isinstance(entry, FileEntry):
            yield from _of_file(job, entry, place, layers)
        else:
            typed = entry if isinstance(entry, PromptEntry) else None
            yield from _of_prompt(job, typed, str(entry), place, layers)


class _Layers:
    """The layers of values that all entries share."""

    def __init__(
        self,
        job: Job,
        model_defaults: Mapping[str, Any],
        resolver: Resolver,
        problems: Problems,
    ) -> None:
        defaults = absolute_image(job.spec.defaults.given(), job.base)
        self._below = {**Params.model_validate(dict(model_defaults)).given(), **defaults}
        self._above = absolute_image(job.forced.given(), Path.cwd())
        self._first, self._last = job.forced, job.spec.defaults
        self._resolver = resolver
        self.problems = problems
        self.name_columns = job.template.columns()

    def resolve(self, values: Mapping[str, Any], place: str) -> Resolved | None:
        return self._resolver.resolve({**self._below, **values, **self._above}, place)

    def seeds(self, given: Iterable[Request], place: str) -> tuple[tuple[int, ...], int] | None:
        """First seeds and the number of outputs of each; None if they leave the range."""
        seed: int | list[int] | None = None
        num_outputs: int | None = None
        for layer in (self._first, *given, self._last):
            seed = layer.seed if seed is None else seed
            num_outputs = layer.num_outputs_per_prompt if num_outputs is None else num_outputs
        seed = _DEFAULT_SEED if seed is None else seed
        num_outputs = _DEFAULT_NUM_OUTPUTS if num_outputs is None else num_outputs
        seeds = tuple(seed) if isinstance(seed, list) else (seed,)
        if max(seeds) + num_outputs - 1 > SEED_MAX:
            message = f"{num_outputs} outputs from seed {max(seeds)} pass the last seed, 2**64-1"
            self.problems.add(place, f"{message}; lower one of them")
            return None
        return seeds, num_outputs


def _of_prompt(
    job: Job, entry: PromptEntry | None, text: str, place: str, layers: _Layers
) -> Iterator[Draft]:
    """One inline prompt: a bare text (`entry` is None) or a mapping, perhaps with a product."""
    values = absolute_image(entry.given(), job.base) if entry else {}
    resolved = layers.resolve(values, place)
    seeds = layers.seeds([entry] if entry else [], place)
    if resolved is None or seeds is None:
        return
    if entry is None or entry.with_ is None:
        prompt = entry.prompt if entry else text
        yield Draft(prompt, *seeds, resolved, _NO_COLUMNS, place, 0)
        return
    try:
        for prompt, chosen in prompts_of(entry.prompt, entry.with_):
            yield Draft(prompt, *seeds, resolved, chosen, place, 0)
    except PlaceholderError as error:
        layers.problems.add(place, str(error))


def _of_file(job: Job, entry: FileEntry, place: str, layers: _Layers) -> Iterator[Draft]:
    path = (job.base / Path(entry.file).expanduser()).absolute()
    shown = str((job.path.parent if job.path else Path()) / entry.file)
    source = Source(
        path=path,
        shown=shown,
        problems=layers.problems,
        column=entry.column,
        wanted=_ROW_KEYS | layers.name_columns,
    )
    try:
        check_is_file(path, shown, what=WHAT)
        source_format = entry.format or format_of(path, shown)
        rows = _FileRows(job, entry, source, layers, is_text=source_format in TEXT_ONLY)
        for number, row in enumerate(read_rows(source, source_format), 1):
            draft = rows.draft(row)
            if draft is not None:
                yield draft
            if number == entry.limit:
                break
    except JobError as error:
        for problem in error.problems:
            if problem.place == shown:
                layers.problems.add(place, str(problem))
            else:
                layers.problems.add(problem.place, problem.message)


class _FileRows:
    """Rows of one file, with the values of their entry and those of their own columns."""

    def __init__(
        self, job: Job, entry: FileEntry, source: Source, layers: _Layers, *, is_text: bool
    ) -> None:
        self._entry, self._source, self._layers, self._is_text = entry, source, layers, is_text
        self._values = absolute_image(entry.given(), job.base)
        # For rows without columns of their own. Made when the first one comes: values that every
        # row replaces need not be right.
        self._common: tuple[tuple[tuple[int, ...], int], Resolved] | None = None

    def draft(self, row: Row) -> Draft | None:
        shown = self._source.shown
        if self._common is not None and _ROW_KEYS.isdisjoint(row.columns):
            seeds, resolved = self._common
            return Draft(row.prompt, *seeds, resolved, row.columns, shown, row.line)
        own = row.columns.keys() & _ROW_KEYS
        place = f"{shown}:{row.line}"
        request = self._request(row, own, place)
        if request is None:
            return None
        values = absolute_image(request.given(), self._source.path.parent)
        found = self._layers.resolve({**self._values, **values}, place)
        found_seeds = self._layers.seeds((request, self._entry), place)
        if found is None or found_seeds is None:
            return None
        if not own:
            self._common = (found_seeds, found)
        return Draft(row.prompt, *found_seeds, found, row.columns, shown, row.line)

    def _request(self, row: Row, own: Set[str], place: str) -> Request | None:
        """The columns that override fields, checked like an entry of the job file."""
        given = {name: row.columns[name] for name in own}
        try:
            return Request.model_validate(parse_texts(given) if self._is_text else given)
        except ValidationError as error:
            problems = self._layers.problems
            explain(error, problems, place=lambda _: place, typed={}, root=Request)
            return None
