"""A checked job becomes the ordered stream of its `Req`s.

Per request only digests of its name and id are kept, so a million rows never are a million objects
in memory. Problems are collected on the way and raised at the end: a caller must not act on a
stream that it has not read to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from diffbatch.job.drafts import Draft, drafts
from diffbatch.job.load import Job
from diffbatch.job.naming import NameTemplateError, slugify
from diffbatch.job.problems import Problems
from diffbatch.job.resolve import Modality, Resolver
from diffbatch.req import Req, SamplingParams, content_id


def expand(
    job: Job,
    *,
    model_key: str,
    model_defaults: Mapping[str, Any],
    modality: Modality,
    check: Callable[[SamplingParams], list[str]],
    effective: Callable[[SamplingParams], SamplingParams] = lambda params: params,
) -> Iterator[Req]:
    """The job's requests, in the order of the file.

    `model_key` and `modality` come from the model's facts, `model_defaults` fills sampling
    parameters that the job leaves open, `check` says what is wrong with a set of parameters (it is
    called once per distinct set), and `effective` drops what changes nothing.
    Raises `JobError` after the last request if anything was wrong.
    """
    problems = Problems()
    resolver = Resolver(
        modality=modality,
        file_format=job.spec.format,
        check=check,
        effective=effective,
        forced_places=job.forced_places,
        problems=problems,
    )
    numbering = _Numbering(job, model_key, problems)
    for draft in drafts(job, model_defaults, resolver, problems):
        yield from numbering.requests(draft)
    problems.raise_if_any()


class _Numbering:
    """Gives requests their index, id and file name, and sees that names differ."""

    def __init__(self, job: Job, model_key: str, problems: Problems) -> None:
        self._template = job.template
        self._name_place = job.places.at(("name",))
        self._needs_columns = bool(job.template.columns())
        self._needs_slug = "slug" in job.template.fields
        self._model_key = model_key
        self._problems = problems
        self._num = 0
        self._num_prompts = 0
        self._index_of_name: dict[int, int] = {}  # by 64-bit hash of the name
        self._ids: set[int] = set()  # by the id's first 64 bits
        self._num_repeats: dict[str, int] = {}
        self._reported: set[str] = set()

    def requests(self, draft: Draft) -> Iterator[Req]:
        prompt = draft.prompt
        prompt_index = self._num_prompts
        self._num_prompts += 1
        if "\0" in prompt:
            self._problems.add(draft.place, "the prompt holds a NUL character; remove it")
            return
        values: dict[str, Any] = {}
        if self._needs_columns:
            try:
                self._template.check_known(draft.columns)
            except NameTemplateError as error:
                self._report_once(draft, error)
                return
            values.update(draft.columns)
        values.update(prompt=prompt, prompt_index=prompt_index, output_index=-1)
        if self._needs_slug:
            values["slug"] = slugify(prompt)
        for first in draft.seeds:
            for seed in range(first, first + draft.num_outputs):
                values["output_index"] += 1
                req = self._request(draft, seed, values)
                if req is not None:
                    yield req

    def _request(self, draft: Draft, seed: int, values: dict[str, Any]) -> Req | None:
        index = self._num
        self._num += 1
        resolved = draft.resolved
        try:
            req_id = self._unique(content_id(self._model_key, resolved.key, draft.prompt, seed))
            values["index"], values["seed"], values["id"] = index, seed, req_id
            name = self._template.render(values, resolved.suffix)
        except NameTemplateError as error:
            self._report_once(draft, error)
            return None
        except UnicodeEncodeError:
            remedy = "write it without \\ud800..\\udfff escapes"
            self._problems.add(draft.place, f"half a character in the text; {remedy}")
            return None
        first = self._index_of_name.setdefault(hash(name), index)
        if first != index:
            self._problems.add(
                draft.place,
                f"requests {first} and {index} would both be called {name!r}; "
                f"add {{index}} or {{seed}} to the name template {self._template.template!r}",
            )
            return None
        return Req(
            index=index,
            id=req_id,
            prompt=draft.prompt,
            seed=seed,
            file=name,
            params=resolved.params,
        )

    def _unique(self, content: str) -> str:
        """Equal requests of one job get "-1", "-2", ... in order, so that each has its record."""
        key = int(content[:16], 16)
        if key not in self._ids:
            self._ids.add(key)
            return content
        number = self._num_repeats.get(content, 0) + 1
        self._num_repeats[content] = number
        return f"{content}-{number}"

    def _report_once(self, draft: Draft, error: NameTemplateError) -> None:
        """The template meets every row; say what is wrong at the first one."""
        message = str(error)
        if message not in self._reported:
            self._reported.add(message)
            self._problems.add(self._name_place, f"name: {message} (found at {draft.place})")
