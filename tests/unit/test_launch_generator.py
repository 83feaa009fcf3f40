"""DiffGenerator with a pretend group of workers: names, ids, parameters, and how it ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffbatch.errors import JobError, RunFolderError, WorkerError
from diffbatch.launch import generator as generator_module
from diffbatch.launch.generator import DiffGenerator
from diffbatch.output.folder import RunFolder
from diffbatch.req import MicroBatch, Record, Req
from diffbatch.worker.link import Message
from diffbatch.worker.spec import WorkerSpec
from tests.unit.model_kit import make_model

SIZE = {"height": 16, "width": 16, "num_frames": 1, "num_inference_steps": 1}


class FakeGroup:
    """Makes an empty file per request, or fails it when its prompt says "fail"."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.reqs: list[Req] = []
        self.batches: list[MicroBatch] = []
        self.how_ended = ""

    def make(self, batches: Iterable[MicroBatch]) -> Iterator[Message]:
        for batch in batches:
            self.batches.append(batch)
            for req in batch.reqs:
                if "die" in req.prompt:
                    raise WorkerError("the workers are gone")
                self.reqs.append(req)
                yield {"event": "record", "record": self._record(req)}

    def _record(self, req: Req) -> dict[str, Any]:
        failed = "fail" in req.prompt
        if not failed:
            (self.spec.run_folder / req.file).write_bytes(b"")
        return Record(
            id=req.id,
            index=req.index,
            status="failed" if failed else "ok",
            file=req.file,
            prompt=req.prompt,
            seed=req.seed,
            params=req.params.as_dict(),
            error="no memory" if failed else None,
        ).as_dict()

    def end(self) -> None:
        self.how_ended = "end"

    def abort(self) -> None:
        self.how_ended = "abort"


@pytest.fixture(autouse=True)
def _no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator_module, "WorkerGroup", FakeGroup)


def make(tmp_path: Path, **options: Any) -> DiffGenerator:
    model = tmp_path / "m"
    if not model.exists():
        make_model(model)
    return DiffGenerator.from_pretrained(
        model, **{"replicas": 1, "output_dir": tmp_path / "out", **options}
    )


def group_of(generator: DiffGenerator) -> FakeGroup:
    group: Any = generator._group
    assert isinstance(group, FakeGroup)
    return group


def test_calls_are_numbered_and_nothing_is_overwritten(tmp_path: Path) -> None:
    with make(tmp_path) as generator:
        first = generator.generate("a cat", **SIZE)
        second = generator.generate(["a cat", "a dog"], seed=[1, 2], **SIZE)
    with make(tmp_path) as later:
        third = later.generate("a cat", **SIZE)
    names = [result.path.name for result in [*first, *second, *third] if result.path]
    assert names == [
        "000-00000-a-cat-0.png",
        "001-00000-a-cat-1.png",
        "001-00001-a-cat-2.png",
        "001-00002-a-dog-1.png",
        "001-00003-a-dog-2.png",
        "002-00000-a-cat-0.png",
    ]


def test_equal_requests_of_any_call_have_records_of_their_own(tmp_path: Path) -> None:
    with make(tmp_path) as generator:
        results = generator.generate(["a cat", "a cat"], **SIZE)
        results += generator.generate("a cat", **SIZE)
    content = results[0].record.id
    assert [r.record.id for r in results] == [content, f"{content}-1", f"{content}-2"]


def test_results_keep_their_order_whatever_is_made_first(tmp_path: Path) -> None:
    with make(tmp_path) as generator:
        group = group_of(generator)
        batches = group.make
        group.make = lambda found: batches(reversed(list(found)))  # type: ignore[method-assign]
        results = generator.generate(["a", "b", "c"], **SIZE)
        assert [req.prompt for req in group.reqs] == ["c", "b", "a"]
    assert [result.prompt for result in results] == ["a", "b", "c"]


def test_a_failed_request_is_a_result_with_an_error(tmp_path: Path) -> None:
    with make(tmp_path) as generator:
        good, bad = generator.generate(["a cat", "fail"], **SIZE)
    assert (good.error, good.path is None) == (None, False)
    assert (bad.error, bad.path) == ("no memory", None)


def test_frames_are_kept_only_when_asked_for(tmp_path: Path) -> None:
    with make(tmp_path) as generator:
        generator.generate("fail", return_frames=True, **SIZE)
        generator.generate("fail", **SIZE)
        assert [batch.keep_frames for batch in group_of(generator).batches] == [True, False]


def test_keys_of_a_job_hold_for_every_call(tmp_path: Path) -> None:
    """Such as a model whose weights are there in one variant only."""
    weights = make_model(tmp_path / "m") / "vae" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".fp16.safetensors"))
    keys = {"variant": "fp16", "dtype": "float16", "batch_size": 2, "format": "webp"}
    with make(tmp_path, **keys, scheduler="UniPCMultistepScheduler") as generator:
        results = generator.generate(["a", "b", "c"], **SIZE)
        group = group_of(generator)
    assert (group.spec.variant, group.spec.dtype) == ("fp16", "float16")
    assert group.spec.scheduler == {"name": "UniPCMultistepScheduler"}
    assert [len(batch.reqs) for batch in group.batches] == [2, 1]
    assert {result.path.suffix for result in results if result.path} == {".webp"}


def test_ids_are_those_of_a_job_with_the_same_request(tmp_path: Path) -> None:
    with make(tmp_path, dtype="float32") as one:
        [first] = one.generate("a cat", **SIZE)
    with make(tmp_path, dtype="bfloat16") as other:
        [second] = other.generate("a cat", **SIZE)
    assert first.record.id != second.record.id, "another dtype, other pixels"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"output": "x"}, "output: unknown argument; did you mean 'output_dir'?"),
        ({"defaults": {"seed": 1}}, "defaults: unknown argument; parameters are for generate()"),
        ({"prompts": ["a"]}, "prompts: unknown argument; prompts are for generate()"),
        ({"name": "{seed}"}, "name: unknown argument; files are named"),
        ({"parallel": {"pp": 2}}, "parallel: unknown argument; give its keys one by one"),
        ({"dtyp": "float32"}, "dtyp: unknown argument; did you mean 'dtype'?"),
    ],
)
def test_keys_that_would_do_nothing_are_refused(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobError) as caught:
        make(tmp_path, **keys)
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "out").exists()


def test_every_axis_can_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"^tp: "):
        make(tmp_path, tp=0)


@pytest.mark.parametrize("params", [{"heigth": 1}, {"height": 17}, {"seed": "x"}])
def test_a_wrong_call_reaches_no_worker(tmp_path: Path, params: dict[str, Any]) -> None:
    with make(tmp_path) as generator:
        with pytest.raises(JobError):
            generator.generate("a cat", **{**SIZE, **params})
        assert group_of(generator).batches == []
        assert len(generator.generate("a cat", **SIZE)) == 1


@pytest.mark.parametrize("prompt", [None, 7, [None], ["a", 7]])
def test_a_prompt_that_is_no_text_is_refused(tmp_path: Path, prompt: Any) -> None:
    with make(tmp_path) as generator, pytest.raises(JobError, match="must be a text"):
        generator.generate(prompt)


def test_prompts_may_come_from_an_iterator(tmp_path: Path) -> None:
    with make(tmp_path) as generator:
        generator.generate((text for text in ("a", "b")), **SIZE)
        assert [req.prompt for req in group_of(generator).reqs] == ["a", "b"]


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    with make(tmp_path) as generator:
        generator.generate("p", seed=np.arange(2), guidance_scale=np.float32(2.5), **SIZE)
        generator.generate("p", seed=[np.int64(0), np.int64(1)], guidance_scale=2.5, **SIZE)
        ids = [req.id for req in group_of(generator).reqs]
    assert [req_id[:16] for req_id in ids[:2]] == [req_id[:16] for req_id in ids[2:]]


def test_a_death_closes_the_generator_and_lets_the_folder_go(tmp_path: Path) -> None:
    generator = make(tmp_path)
    group = group_of(generator)
    with pytest.raises(WorkerError, match="are gone"):
        generator.generate("die", **SIZE)
    assert group.how_ended == "abort"
    with pytest.raises(WorkerError, match="closed"):
        generator.generate("a cat", **SIZE)
    generator.close()
    RunFolder(tmp_path / "out").close()


def test_closing_lets_the_workers_leave_and_the_folder_go(tmp_path: Path) -> None:
    generator = make(tmp_path)
    group = group_of(generator)
    with pytest.raises(RunFolderError, match="in use"):
        make(tmp_path)
    generator.close()
    generator.close()
    assert group.how_ended == "end"
    make(tmp_path).close()


def test_workers_that_cannot_start_leave_the_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_spec: WorkerSpec) -> FakeGroup:
        raise OSError("no more processes")

    with monkeypatch.context() as patch:
        patch.setattr(generator_module, "WorkerGroup", fail)
        with pytest.raises(OSError, match="no more processes"):
            make(tmp_path)
    make(tmp_path).close()


def test_without_a_folder_the_outputs_go_to_a_new_one(tmp_path: Path) -> None:
    with make(tmp_path, output_dir=None) as generator:
        [result] = generator.generate("a cat", **SIZE)
    assert result.path is not None
    assert result.path.is_file()
