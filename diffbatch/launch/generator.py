"""DiffGenerator: diffbatch from Python. The workers start once and keep the model loaded."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from diffbatch.errors import JobError, Problem, WorkerError
from diffbatch.job.load import load_prompts
from diffbatch.job.overrides import CommandLine
from diffbatch.job.problems import suggestion
from diffbatch.launch.choose import choose_layout
from diffbatch.launch.group import WorkerGroup
from diffbatch.launch.prepare import Prepared, prepare
from diffbatch.launch.run import worker_spec
from diffbatch.output.folder import RunFolder
from diffbatch.output.layout import frames_file
from diffbatch.output.manifest import merge
from diffbatch.plan.batches import work_queue
from diffbatch.req import MicroBatch, Record, Req

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_JOB_KEYS = ("dtype", "variant", "revision", "scheduler", "format", "batch_size")
_PARALLEL_KEYS = ("tp", "ulysses", "ring", "pp_partition", "in_flight")
_ARGUMENTS = ("replicas", "pp", "cfg", "output_dir", "threads")
_ELSEWHERE = {
    "output": "did you mean 'output_dir'?",
    "name": "files are named by call, index, prompt and seed",
    "prompts": "prompts are for generate()",
    "prompt": "prompts are for generate()",
    "defaults": "parameters are for generate()",
    "parallel": "give its keys one by one, such as replicas=2",
}
_MANY = 1_000_000  # auto replicas: the calls to come may bring any number of requests


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """What became of one request. Exactly one of `path` and `error` is None."""

    prompt: str
    seed: int
    path: Path | None
    error: str | None
    record: Record
    frames: npt.NDArray[np.uint8] | None = None  # (F, H, W, 3), when asked for


class DiffGenerator:
    """A client of a group of workers that stays alive between calls.

        with DiffGenerator.from_pretrained("demo", replicas=2) as generator:
            for result in generator.generate(prompt=["a red circle"], seed=[0, 1]):
                print(result.path)

    Leaving the `with` block, or `close`, ends every worker process. Not for several threads at
    once. A worker that dies makes the pending call raise WorkerError; the generator is then closed.
    """

    def __init__(self, prepared: Prepared, folder: RunFolder, group: WorkerGroup) -> None:
        self._prepared = prepared
        self._folder = folder
        self._group: WorkerGroup | None = group
        self._num_calls = 0
        self._num_of_id: dict[str, int] = {}

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        replicas: int | str = "auto",
        pp: int = 1,
        cfg: int = 1,
        output_dir: str | Path | None = None,
        threads: int = 1,
        **job_keys: Any,
    ) -> Self:
        """Start the workers for `model`: "demo", a folder, or a hub id.

        `output_dir` is a run folder; without one a new temporary folder is made and kept.
        `job_keys` are keys of a job file: dtype, variant, revision, scheduler, format, batch_size,
        and of its `parallel`: tp, ulysses, ring, pp_partition, in_flight. Returns at once, while
        the workers load. Raises JobError and PlanError.
        """
        given = _dotted(job_keys)
        output = Path(output_dir) if output_dir else Path(tempfile.mkdtemp(prefix="diffbatch-"))
        parallel = {"parallel.replicas": replicas, "parallel.pp": pp, "parallel.cfg": cfg}
        keys = {**given, "model": str(model), "output": str(output), **parallel}
        prepared = prepare(None, ["."], CommandLine(keys=keys, is_call=True))
        layout = choose_layout(prepared, _MANY)
        folder = RunFolder(output, command="DiffGenerator")
        try:
            group = WorkerGroup(worker_spec(prepared, layout, threads))
        except BaseException:
            folder.close()
            raise
        return cls(prepared, folder, group)

    def generate(
        self, prompt: str | Sequence[str], *, return_frames: bool = False, **params: Any
    ) -> list[GenerationResult]:
        """Make one output per prompt and seed, and wait for all of them.

        `params` are those of a job entry: seed (a number or a list), num_outputs_per_prompt,
        height, width, num_frames, num_inference_steps, guidance_scale, negative_prompt, ...
        Results come in the order of prompts, then seeds. Raises JobError for wrong parameters,
        WorkerError when a worker dies.
        """
        if self._group is None:
            raise WorkerError("this DiffGenerator is closed; make a new one")
        reqs = self._reqs(_texts(prompt), {name: _plain(value) for name, value in params.items()})
        batches = self._batches(reqs, return_frames)
        records: dict[str, Record] = {}
        try:
            for event in self._group.make(batches):
                if event["event"] == "record":
                    record = event["record"]
                    records[record["id"]] = Record(**{**record, "ranks": tuple(record["ranks"])})
        except BaseException:
            self._abort()
            raise
        return [self._result(records[req.id], return_frames) for req in reqs]

    def close(self) -> None:
        """End the workers; no process is left. The outputs and their manifest stay."""
        if self._group is not None:
            self._group.end()
            self._settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _reqs(self, prompts: Sequence[str], params: dict[str, Any]) -> list[Req]:
        if not prompts:
            raise JobError("give at least one prompt")
        spec = self._prepared.job.spec
        keys = {
            "model": str(self._prepared.facts.folder),  # not read again
            "name": f"{self._next_call():03d}-{{index:05d}}-{{slug}}-{{seed}}",
            **{key: getattr(spec, key) for key in ("dtype", "format", "batch_size")},
        }
        job = load_prompts(prompts, CommandLine(keys=keys, params=params, is_call=True))
        call = replace(self._prepared, job=job)
        return [self._unique(req) for req in call.reqs()]

    def _next_call(self) -> int:
        """The first number that no file of the folder begins with: nothing is overwritten."""
        while True:
            number = self._num_calls
            if not any(self._folder.root.glob(f"{number:03d}-*")):
                self._num_calls += 1
                return number
            self._num_calls += 1

    def _unique(self, req: Req) -> Req:
        """An equal request of an earlier call is made again, so it needs a record of its own."""
        content = req.id.partition("-")[0]
        number = self._num_of_id.get(content, 0)
        self._num_of_id[content] = number + 1
        return replace(req, id=f"{content}-{number}" if number else content)

    def _batches(self, reqs: list[Req], keep_frames: bool) -> list[MicroBatch]:
        todo = {req.id for req in reqs}
        queue = work_queue(
            reqs, todo, batch_size=self._prepared.batch_size, facts=self._prepared.facts
        )
        return [replace(batch, keep_frames=keep_frames) for batch in queue]

    def _result(self, record: Record, return_frames: bool) -> GenerationResult:
        ok = record.status == "ok"
        return GenerationResult(
            prompt=record.prompt,
            seed=record.seed,
            path=self._folder.root / record.file if ok else None,
            error=record.error,
            record=record,
            frames=self._frames(record) if ok and return_frames else None,
        )

    def _frames(self, record: Record) -> npt.NDArray[np.uint8]:
        import numpy as np

        path = self._folder.root / frames_file(record.id)
        frames: npt.NDArray[np.uint8] = np.load(path, allow_pickle=False)
        path.unlink()
        return frames

    def _abort(self) -> None:
        if self._group is not None:
            self._group.abort()
            self._settle()

    def _settle(self) -> None:
        self._group = None
        merge(self._folder.root)
        self._folder.close()


def _dotted(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a job by their dotted path. Raises JobError for those that would do nothing."""
    valid = [*_ARGUMENTS, *_JOB_KEYS, *_PARALLEL_KEYS]
    problems = [
        Problem(name, f"unknown argument; {_ELSEWHERE.get(name) or suggestion(name, valid)}")
        for name in given
        if name not in (*_JOB_KEYS, *_PARALLEL_KEYS)
    ]
    if problems:
        raise JobError(problems)
    return {f"parallel.{n}" if n in _PARALLEL_KEYS else n: value for n, value in given.items()}


def _texts(prompt: Any) -> list[str]:
    if isinstance(prompt, str):
        return [prompt]
    texts = list(prompt) if isinstance(prompt, Iterable) else [prompt]
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise JobError(f"prompt must be a text or a list of texts, found {wrong[0]!r}")
    return texts


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch, also in lists, as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, list | tuple | range) else value
