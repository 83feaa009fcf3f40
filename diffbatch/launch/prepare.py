"""From what the user typed to checked Reqs and a plan: everything before anything is launched."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from diffbatch.errors import JobError, PlanError
from diffbatch.job.expand import expand
from diffbatch.job.load import Job, load_job, load_prompts
from diffbatch.job.overrides import CommandLine
from diffbatch.job.spec import SchedulerSpec
from diffbatch.launch.devices import num_gpus
from diffbatch.models.folder import read_model
from diffbatch.models.resolve import resolve_model
from diffbatch.models.schedulers import scheduler_problem
from diffbatch.output.formats import check_size
from diffbatch.output.layout import is_reserved
from diffbatch.plan.activations import Work
from diffbatch.plan.batches import batch_size_of, num_tokens
from diffbatch.plan.checks import cfg_problems, effective, param_problems, without_effect
from diffbatch.plan.facts import BatchSize, ModelFacts, model_key
from diffbatch.req import Req, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the user says of the machine, as typed; nothing of it changes what is made."""

    devices: str | None = None  # --devices
    memory_gb: float | None = None  # --memory-gb, of one rank


NO_WORD = Machine()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job whose model is known. `reqs` can be read more than once; each time it expands anew."""

    job: Job
    facts: ModelFacts
    scheduler: dict[str, Any]  # {} keeps the folder's own
    machine: Machine = NO_WORD
    # Seen by `reqs` on its way: parameters without effect, lengths of sequences in tokens, ...
    ignored: set[str] = field(default_factory=set)
    picture_lengths: set[int] = field(default_factory=set)
    text_lengths: set[int] = field(default_factory=set)
    works: set[Work] = field(default_factory=set)  # what the kinds of micro-batch bring
    counts: Counter[str] = field(default_factory=Counter)  # "requests", after a whole pass

    @property
    def batch_size(self) -> BatchSize:
        """Reqs per micro-batch, as the job says it."""
        return self.job.spec.batch_size

    @property
    def batch_sizes(self) -> list[int]:
        """What `batch_size` comes to for the kinds of request that `reqs` has seen."""
        return sorted({work.batch_size for work in self.works})

    def reqs(self) -> Iterator[Req]:
        """The job's requests in order. Raises JobError at the end if any of them is wrong."""
        spec = self.job.spec
        scheduler = json.dumps(self.scheduler, sort_keys=True) if self.scheduler else ""
        key = model_key(
            self.facts, dtype=spec.dtype, scheduler=scheduler, batch_size=spec.batch_size
        )
        requests = expand(
            self.job,
            model_key=key,
            model_defaults=self.facts.defaults,
            modality=self.facts.modality,
            check=self._check,
            effective=self._effective,
        )
        num = 0
        for req in requests:
            num += 1
            if is_reserved(req.file):
                raise JobError(
                    f"an output would be called {req.file}, a name that the run folder needs for "
                    "itself; change the name template",
                    place="name",
                )
            yield req
        self.counts["requests"] = num

    def _effective(self, params: SamplingParams) -> SamplingParams:
        # A model's own default that has no effect (fps of a picture) is nobody's mistake.
        defaults = self.facts.defaults
        self.ignored.update(
            name
            for name in without_effect(params, self.facts)
            if getattr(params, name) not in ("", defaults.get(name))
        )
        self.picture_lengths.add(num_tokens(params, self.facts))
        self.text_lengths.add(params.max_sequence_length or 0)
        pixels = (params.height or 0) * (params.width or 0)
        self.works.add(
            Work(
                batch_size=batch_size_of(params, self.batch_size, self.facts),
                picture_tokens=num_tokens(params, self.facts),
                text_tokens=params.max_sequence_length or 0,
                frame_pixels=pixels,
                clip_pixels=pixels * (params.num_frames or 1),
            )
        )
        return effective(params, self.facts)

    def _check(self, params: SamplingParams) -> list[str]:
        problems = param_problems(params, self.facts)
        problems += cfg_problems(params, self.facts, self.job.spec.parallel.cfg)
        still = self.facts.modality == "image" or params.num_frames == 1
        suffix = self.job.spec.format or ("png" if still else "mp4")
        if params.height is not None and params.width is not None:
            size_problem = check_size(suffix, params.height, params.width)
            problems += [size_problem] if size_problem else []
        return problems


def prepare(
    job_path: Path | None,
    prompts: Sequence[str],
    command_line: CommandLine,
    machine: Machine = NO_WORD,
) -> Prepared:
    """Read and check the job (a file, or prompts alone) and look at its model.

    Raises JobError or PlanError with everything that is wrong.
    """
    command_line = _absolute_model(command_line)
    if job_path is not None:
        job = load_job(job_path, command_line)
    else:
        job = load_prompts(prompts, command_line)
    job = _with_dtype(job)
    spec = job.spec
    also = Path.cwd() if "model" in command_line.keys else None
    folder = resolve_model(spec.model, base=job.base, revision=spec.revision, also=also)
    facts = read_model(spec.model, folder, variant=spec.variant)
    scheduler = _scheduler(spec.scheduler)
    if problem := scheduler_problem(scheduler):
        raise PlanError(problem, place=job.places.at(("scheduler",)))
    return Prepared(job=job, facts=facts, scheduler=scheduler, machine=machine)


def _with_dtype(job: Job) -> Job:
    """`dtype: auto` made a type: ids must tell the pixels of a CPU from those of a GPU."""
    if job.spec.dtype != "auto":
        return job
    dtype = "bfloat16" if num_gpus() else "float32"
    return replace(job, spec=job.spec.model_copy(update={"dtype": dtype}))


def _scheduler(choice: str | SchedulerSpec | None) -> dict[str, Any]:
    if choice is None:
        return {}
    return {"name": choice} if isinstance(choice, str) else choice.model_dump()


def _absolute_model(command_line: CommandLine) -> CommandLine:
    """`--model path` is relative to the working folder, `model:` of a job to the job file."""
    model = command_line.keys.get("model")
    if model is None or not Path(model).is_dir() or model == "demo":
        return command_line
    return replace(command_line, keys={**command_line.keys, "model": str(Path(model).absolute())})
