"""`plan` and `run` with --memory-gb and --parallel auto, and `parallel: auto` of a job file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from diffbatch.cli.main import app
from diffbatch.errors import DiffbatchError, PlanError
from diffbatch.job.overrides import CommandLine
from diffbatch.launch.plan import make_plan
from diffbatch.launch.prepare import prepare
from tests.unit.tiny_headers import HALF, ONE_BLOCK, OUTSIDE, make_wan_on_cpu


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_wan_on_cpu(tmp_path, monkeypatch)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_plan_shows_the_memory_of_every_rank_and_what_auto_rejected(model: Path) -> None:
    base = ["plan", "-m", str(model), "-p", "a cat", "-o", str(model.parent / "o")]
    asked = ["--parallel", "auto", "--memory-gb", str(HALF / 1e9)]
    found = json.loads(command(*base, *asked, "--json").stdout)
    assert found["layout"]["pp"] == 2
    memory = found["memory"]
    assert (memory["dtype"], memory["fits"], memory["refused"]) == ("float32", True, None)
    assert memory["budget_bytes"] == HALF
    assert [rank["weights"]["transformer"] for rank in memory["ranks"]] == [
        2 * ONE_BLOCK + OUTSIDE
    ] * 2
    assert found["auto"]["rejected"][0]["name"] == "one rank"
    text = command(*base, *asked)
    assert text.exit_code == 0
    for part in ("auto chose pp 2", "not one rank: rank 0", "Memory of each rank", "fits: 0.01 MB"):
        assert part in text.stdout


def test_plan_shows_a_layout_that_does_not_fit_and_then_refuses_it(model: Path) -> None:
    base = [
        "plan",
        "-m",
        str(model),
        "-p",
        "a cat",
        "-o",
        str(model.parent / "o"),
        "--replicas",
        "1",
    ]
    result = command(*base, "--memory-gb", "0.00001", "--json")
    assert isinstance(result.exception, PlanError)
    assert result.exception.exit_code == 2
    memory = json.loads(result.stdout)["memory"]
    assert memory["fits"] is False
    assert memory["refused"] in str(result.exception)
    assert command(*base, "--json").exit_code == 0


def test_a_run_that_does_not_fit_is_refused_before_anything_starts(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("launched")

    monkeypatch.setattr("diffbatch.launch.run.WorkerGroup", forbidden)
    base = [
        "run",
        "-m",
        str(model),
        "-p",
        "a cat",
        "-o",
        str(model.parent / "o"),
        "--replicas",
        "1",
    ]
    result = command(*base, "--memory-gb", "0.00001")
    assert isinstance(result.exception, DiffbatchError)
    assert result.exception.exit_code == 2
    assert "the smallest layout that fits: --pp 2" in str(result.exception)


JOB = "model: {model}\noutput: o\nprompts: [a cat]\n"


@pytest.mark.parametrize(
    ("parallel", "options", "pp", "auto"),
    [
        ("auto", [], 1, True),
        ("auto", ["--pp", "2"], 2, False),
        ("auto", ["--set", "parallel.pp=2"], 2, False),
        ("{auto: true, replicas: 2}", ["--cfg", "1"], 1, False),
        ("auto", ["--set", "parallel.replicas=3"], 1, True),
        ("{auto: true, replicas: 2}", [], 1, True),
        ("{pp: 2}", ["--parallel", "auto"], 1, True),
        ("{pp: 2}", ["--set", "parallel=auto"], 1, True),
        ("{pp: 2}", [], 2, False),
    ],
)
def test_degrees_that_are_given_beat_auto_of_the_job_file(
    model: Path, parallel: str, options: list[str], pp: int, auto: bool
) -> None:
    path = model.parent / "job.yaml"
    path.write_text(JOB.format(model=model) + f"parallel: {parallel}\n")
    result = command("plan", str(path), "--json", *options)
    assert result.exit_code == 0, result
    found = json.loads(result.stdout)
    assert found["layout"]["pp"] == pp
    assert (found["auto"] is not None) is auto


@pytest.mark.parametrize(
    ("parallel", "options", "message"),
    [
        ("{}", ["--parallel", "auto", "--pp", "2"], "leave out --pp"),
        ("{}", ["--parallel", "2"], "takes only auto"),
        ("{auto: true, pp: 2, tp: 2}", [], "leave out pp 2, tp 2"),
        ("{}", ["--set", "parallel.auto=true", "--pp", "2"], "leave out pp 2"),
        ("both", [], "must be a mapping"),
    ],
)
def test_auto_and_degrees_together_are_an_error(
    model: Path, parallel: str, options: list[str], message: str
) -> None:
    path = model.parent / "job.yaml"
    path.write_text(JOB.format(model=model) + f"parallel: {parallel}\n")
    result = command("plan", str(path), *options)
    assert result.exit_code != 0
    assert message in " ".join(f"{result.output} {result.exception}".split())


def test_the_rank_table_names_the_devices(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    base = ["plan", "-m", str(model), "-p", "a cat", "-o", "o", "--memory-gb", "1", "--json"]
    found = json.loads(command(*base, "--pp", "2", "--devices", "7,6,4,5").stdout)
    ranks = [(rank["replicas"], rank["pp"], rank["device"]) for rank in found["layout"]["ranks"]]
    assert ranks == [(0, 0, "GPU 7"), (0, 1, "GPU 6"), (1, 0, "GPU 4"), (1, 1, "GPU 5")]
    assert found["memory"]["dtype"] == "bfloat16"
    plain = json.loads(command(*base, "--replicas", "2").stdout)
    assert [rank["device"] for rank in plain["layout"]["ranks"]] == ["cuda:0", "cuda:1"]


def test_the_memory_is_that_of_the_largest_kind_of_micro_batch(tmp_path: Path) -> None:
    """Not of a batch of the smallest pictures at the size of the largest."""

    def activations(*sides: int, batch_size: str = "auto") -> int:
        lines = [f"  - {{prompt: p{k}, height: {s}, width: {s}}}" for k, s in enumerate(sides)]
        job = tmp_path / "kinds.yaml"
        head = f"model: demo\nbatch_size: {batch_size}\ndefaults: {{num_frames: 1}}\nprompts:\n"
        job.write_text(head + "\n".join(lines))
        prepared = prepare(job, [], CommandLine())
        plan = make_plan(prepared)
        found: int = plan["memory"]["ranks"][0]["activation_bytes"]
        return found

    assert activations(512, 32) == activations(512)
    assert activations(64, batch_size="1000") == activations(64, batch_size="1")
    assert activations(64, 64) == 2 * activations(64)
