"""Sweeps, their product, and the requests that every point makes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diffbatch.bench.requests import RANDOM, Workload, make_task, random_prompts, warmup_batches
from diffbatch.bench.sweep import Point, Sweep, parse_sweeps, points_of
from diffbatch.errors import JobError, PlanError
from diffbatch.job.overrides import CommandLine
from diffbatch.launch.prepare import Machine
from tests.unit.model_kit import make_model

SMALL = {"height": 32, "width": 32, "num_frames": 1, "num_inference_steps": 2}


def test_the_product_runs_the_last_sweep_fastest() -> None:
    sweeps = parse_sweeps(["replicas=1,2", "in-flight=1, 3"])
    assert sweeps == (
        Sweep(axis="replicas", values=(1, 2)),
        Sweep(axis="in_flight", values=(1, 3)),
    )
    points = points_of(sweeps)
    assert [point.label for point in points] == [
        "replicas 1, in_flight 1",
        "replicas 1, in_flight 3",
        "replicas 2, in_flight 1",
        "replicas 2, in_flight 3",
    ]
    assert points[3].name == "03-replicas-2-in_flight-3"
    assert points[3].job_keys() == {"parallel.replicas": 2, "parallel.in_flight": 3}


def test_a_swept_degree_takes_the_choice_from_auto(model: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("model: m\nprompts: [a cat]\nparallel: auto\n")
    work = workload(model, job=job)
    work.check([point(cfg=2)])
    assert make_task(work, point(cfg=2)).layout.cfg == 2
    assert "parallel.auto" not in point(replicas=2).job_keys()


def test_without_a_sweep_the_job_is_the_only_point() -> None:
    [point] = points_of(parse_sweeps([]))
    assert (point.label, point.name, point.job_keys()) == ("as it is", "00", {})


def test_the_batch_size_is_a_key_of_the_job_itself() -> None:
    assert Point(number=0, settings={"batch_size": 4}).job_keys() == {"batch_size": 4}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["replicas"], "--sweep replicas: write axis=1,2,4, such as replicas=1,2"),
        (["replica=1"], "--sweep replica=1: unknown axis 'replica'; did you mean 'replicas'?"),
        (["pp=1,zero"], "--sweep pp=1,zero: 'zero' is not a whole number from 1 on"),
        (["pp=0"], "--sweep pp=0: '0' is not a whole number from 1 on"),
        (["pp="], "--sweep pp=: '' is not a whole number from 1 on"),
        (["pp=2,2"], "--sweep pp=2,2: a value is there twice; --repeat N measures each again"),
        (
            ["pp=1", "pp=2"],
            "--sweep pp=1: pp is swept twice; give all its values at once",
        ),
        (
            [f"pp={','.join(map(str, range(1, 300)))}"],
            "--sweep: the sweeps make 299 points, and 256 is the most; sweep fewer values",
        ),
    ],
)
def test_a_wrong_sweep_is_named(texts: list[str], message: str) -> None:
    with pytest.raises(JobError) as caught:
        parse_sweeps(texts)
    assert str(caught.value) == message


def test_random_prompts_are_always_the_same_and_differ_from_each_other() -> None:
    texts = random_prompts(832)
    assert texts == random_prompts(832)
    assert len(set(texts)) == 832
    assert random_prompts(2)[0] == "a small red circle on a white background"
    for text in texts:
        _, size, colour, _, *_, background, _ = text.split()
        assert size in ("small", "large")
        assert colour != background, "it would not be seen"
    assert len(set(random_prompts(3000))) == 3000


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "m")


def workload(
    model: Path, *, job: Path | None = None, prompts: str = RANDOM, num: int = 4, **line: Any
) -> Workload:
    keys = {"model": str(model)}
    command_line = CommandLine(**{"keys": keys, "params": SMALL, **line})
    return Workload(job=job, prompts=prompts, num=num, command_line=command_line)


def point(**settings: int) -> Point:
    return Point(number=0, settings=settings)


def test_every_point_makes_the_same_requests(model: Path) -> None:
    work = workload(model)
    one, two = (make_task(work, point(replicas=n)) for n in (1, 2))
    assert one.reqs == two.reqs
    assert [req.prompt for req in one.reqs] == random_prompts(4)
    assert (one.layout.replicas, two.layout.replicas) == (1, 2)
    assert two.settings["replicas"] == 2


def test_the_batch_size_changes_ids_but_neither_files_nor_prompts(model: Path) -> None:
    one, two = (make_task(workload(model), point(batch_size=n)) for n in (1, 2))
    assert [(r.prompt, r.file) for r in one.reqs] == [(r.prompt, r.file) for r in two.reqs]
    assert (len(one.batches), len(two.batches)) == (4, 2)


def test_prompts_come_from_a_file_or_a_job_and_only_the_first_ones_count(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p.txt").write_text("a cat\na dog\na bird\n")
    (tmp_path / "job.yaml").write_text("model: m\nprompts: [{prompt: a cat, seed: [5, 6, 7]}]\n")
    monkeypatch.chdir(tmp_path)
    from_file = make_task(workload(model, prompts="p.txt", num=2), point())
    assert [req.prompt for req in from_file.reqs] == ["a cat", "a dog"]
    from_job = make_task(workload(model, job=Path("job.yaml"), num=2), point())
    assert [req.seed for req in from_job.reqs] == [5, 6]


def test_what_is_wrong_with_the_job_is_no_matter_of_a_point(model: Path) -> None:
    with pytest.raises(JobError, match="height 17"):
        workload(model, params={**SMALL, "height": 17}).check([point(replicas=2)])
    with pytest.raises(JobError, match="this key is swept"):
        workload(model, sets=["parallel.pp=2"]).check([point(pp=1)])
    workload(model, sets=["parallel.pp=200"]).check([point(replicas=1)])


def test_a_point_that_cannot_run_says_why(model: Path) -> None:
    with pytest.raises((JobError, PlanError), match="guidance branches"):
        make_task(workload(model), point(cfg=3))


def test_warm_up_requests_are_like_the_others_but_with_texts_and_names_of_their_own(
    model: Path,
) -> None:
    task = make_task(workload(model), point(batch_size=3))
    warm = warmup_batches(task.batches, 3, first=3)
    assert [len(batch.reqs) for batch in warm] == [1, 3, 1]  # 4 requests are batches of 3 and 1
    ids = {req.id for batch in warm for req in batch.reqs}
    assert len(ids) == 5
    assert not ids & {req.id for req in task.reqs}
    assert all(batch.write == {req.id for req in batch.reqs} for batch in warm)
    reqs = [req for batch in warm for req in batch.reqs]
    assert all(req.file.startswith("bench-warmup/") for req in reqs)
    assert not {req.prompt for req in reqs} & {req.prompt for req in task.reqs}
    assert {req.params for req in reqs} == {req.params for req in task.reqs}


def test_a_point_that_does_not_fit_the_memory_is_refused(model: Path) -> None:
    work = replace(workload(model), machine=Machine(memory_gb=1e-9))
    with pytest.raises(PlanError, match="--memory-gb"):
        make_task(work, point(replicas=1))
