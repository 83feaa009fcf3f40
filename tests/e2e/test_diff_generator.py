"""DiffGenerator: the workers start once, answer call after call, and leave with it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from diffbatch import DiffGenerator, GenerationResult
from diffbatch.errors import JobError, PlanError, WorkerError
from diffbatch.worker.link import Message
from tests.e2e import command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SIZE = {"height": 32, "width": 32, "num_frames": 1, "num_inference_steps": 2}
FIRST_STEP_S = 1.0
DEATH_S = 20.0


@pytest.fixture(scope="module")
def generator(
    tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DiffGenerator]:
    """One group of two replicas for all tests that leave it alive; its end is checked as well."""
    folder = tmp_path_factory.mktemp("generator") / "out"
    with DiffGenerator.from_pretrained(tiny("wan"), replicas=2, output_dir=folder) as made:
        made.generate(prompt="warm up", **SIZE)
        assert len(command.workers(folder)) == 2
        yield made
    command.assert_all_gone(folder)
    made_files = {record["file"] for record in command.records(folder)}
    assert made_files == {path.name for path in folder.iterdir() if path.suffix in {".png", ".mp4"}}
    with pytest.raises(WorkerError, match="this DiffGenerator is closed; make a new one"):
        made.generate(prompt="too late", **SIZE)
    made.close()


def test_results_come_in_the_order_of_prompts_then_seeds(generator: DiffGenerator) -> None:
    prompts = ["a cat", "a much dearer dog", "a bird"]
    results = generator.generate(prompt=prompts, seed=[3, 1], **SIZE)
    assert [(r.prompt, r.seed) for r in results] == [(p, s) for p in prompts for s in (3, 1)]
    for result in results:
        assert result.error is None
        assert result.frames is None
        assert result.path is not None
        assert result.path.is_file()
        assert result.record.sha256 == command.pictures(result.path.parent)[result.path.name]
    assert len({result.record.sha256 for result in results}) == 6


def test_a_later_call_starts_in_under_a_second(generator: DiffGenerator) -> None:
    group = generator._group
    assert group is not None
    seen_s: list[float] = []
    make = group.make

    def watched(batches: Any) -> Iterator[Message]:
        for event in make(batches):
            if event["event"] in {"started", "step"}:
                seen_s.append(time.monotonic())
            yield event

    group.make = watched  # type: ignore[method-assign]
    try:
        begin_s = time.monotonic()
        generator.generate(prompt="a ring", **SIZE)
    finally:
        group.make = make  # type: ignore[method-assign]
    assert seen_s
    assert seen_s[0] - begin_s < FIRST_STEP_S


def test_frames_are_the_pixels_of_the_file(generator: DiffGenerator) -> None:
    [result] = generator.generate(prompt="a star", return_frames=True, **SIZE)
    assert result.path is not None
    assert result.frames is not None
    assert result.frames.dtype == np.uint8
    assert result.frames.shape == (1, 32, 32, 3)
    with Image.open(result.path) as picture:
        assert np.array_equal(result.frames[0], np.asarray(picture.convert("RGB")))
    frames = result.path.parent / "frames"
    assert not list(frames.glob("*")), "what was handed over does not stay on disk"


def test_a_clip_is_a_video_file_with_all_its_frames(generator: DiffGenerator) -> None:
    [result] = generator.generate(
        prompt="waves", return_frames=True, **{**SIZE, "num_frames": 5}, fps=8
    )
    assert result.path is not None
    assert result.path.suffix == ".mp4"
    assert result.frames is not None
    assert result.frames.shape == (5, 32, 32, 3)


def test_equal_requests_are_made_each_time_and_are_equal(generator: DiffGenerator) -> None:
    twice = generator.generate(prompt=["a lamp", "a lamp"], seed=5, **SIZE)
    again = generator.generate(prompt="a lamp", seed=5, **SIZE)
    results: list[GenerationResult] = [*twice, *again]
    assert len({result.path for result in results}) == 3
    assert len({result.record.id for result in results}) == 3
    assert len({result.path.read_bytes() for result in results if result.path}) == 1


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ("a", {"heigth": 32}, "heigth"),
        ("a", {"height": 100}, "height 100 is not a multiple of 16"),
        ("a", {"num_frames": 6}, "num_frames 6 is not"),
        ("a", {"seed": -1}, "seed"),
        ([], {}, "at least one prompt"),
        ([""], {}, "empty"),
    ],
)
def test_a_wrong_call_raises_and_the_next_one_works(
    generator: DiffGenerator, prompt: Any, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobError, match=message):
        generator.generate(prompt=prompt, **{**SIZE, **params})
    [result] = generator.generate(prompt="a leaf", **{**SIZE, "num_inference_steps": 1})
    assert result.error is None


def test_a_second_client_of_the_same_folder_is_refused(
    generator: DiffGenerator, tiny: Callable[[str], Path]
) -> None:
    [result] = generator.generate(prompt="a leaf", **SIZE)
    assert result.path is not None
    with pytest.raises(Exception, match=f"in use by another run: pid {os.getpid()} "):
        DiffGenerator.from_pretrained(tiny("wan"), output_dir=result.path.parent)


def test_a_model_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="there is no folder"):
        DiffGenerator.from_pretrained(tmp_path / "none", output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_killed_worker_makes_the_pending_call_raise(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    generator = DiffGenerator.from_pretrained(tiny("wan"), replicas=2, output_dir=folder)
    killed_s: list[float] = []

    def kill_one() -> None:
        command.wait_until(lambda: len(command.records(folder)) >= 1, "record")
        command.kill(command.workers(folder)[1])
        killed_s.append(time.monotonic())

    thread = threading.Thread(target=kill_one)
    thread.start()
    with pytest.raises(WorkerError, match="the worker of local rank 1 was killed by signal 9"):
        generator.generate(prompt=["a cat"] * 500, **{**SIZE, "height": 64, "width": 64})
    thread.join()
    assert time.monotonic() - killed_s[0] < DEATH_S
    command.assert_all_gone(folder)
    assert len(command.records(folder)) >= 1, "what was made is kept"
    with pytest.raises(WorkerError, match="closed"):
        generator.generate(prompt="a cat", **SIZE)
