"""The conductor of a bench, with a pretend launcher: what is launched, said and returned."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from diffbatch.bench import run as run_module
from diffbatch.bench.measure import Trace
from diffbatch.bench.point import StoppedError
from diffbatch.bench.requests import RANDOM, Task, Workload
from diffbatch.bench.run import BenchChoices, run_bench
from diffbatch.bench.sweep import parse_sweeps
from diffbatch.errors import PlanError, WorkerError
from diffbatch.job.overrides import CommandLine
from tests.unit.model_kit import make_model

Act = Callable[[Task, int], str]


def trace_of(task: Task, sha256: str) -> Trace:
    """One request per second on every replica."""
    ids = frozenset(req.id for req in task.reqs)
    trace = Trace(layout=task.layout, begin_s=0.0, counted=ids)
    for number, req in enumerate(task.reqs):
        replica, begin_s = number % task.layout.replicas, number // task.layout.replicas
        record = {
            "id": req.id,
            "index": req.index,
            "file": req.file,
            "sha256": sha256,
            "status": "ok",
            "error": None,
            "replica": replica,
            "stage_s": {},
            "height": 32,
            "width": 32,
            "num_frames": 1,
        }
        trace.note({"event": "started", "ids": [req.id]}, float(begin_s))
        trace.note({"event": "record", "record": record}, float(begin_s + 1))
    return trace


class FakeLauncher:
    """`act` gives the hash of all files of the n-th launch, or raises."""

    act: Act = staticmethod(lambda _task, _number: "same")
    launched: list[str]

    def __init__(self, **_: Any) -> None:
        type(self).launched = []
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True

    def launch(self, task: Task, folder: Path) -> Trace:
        number = len(self.launched)
        self.launched.append(f"{folder.parent.name}/{folder.name}")
        try:
            return trace_of(task, self.act(task, number))
        except StoppedError:
            self.stopped = True
            raise


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, Any]]:
    """`bench(*sweeps, act=...)` gives exit code, what was said, and bench.json."""
    model = make_model(tmp_path / "m")
    monkeypatch.setattr(run_module, "Launcher", FakeLauncher)

    def call(*sweeps: str, act: Act | None = None, **more: Any) -> tuple[int, str, Any]:
        monkeypatch.setattr(FakeLauncher, "act", staticmethod(act or (lambda *_: "same")))
        params = {"height": 32, "width": 32, "num_frames": 1, "num_inference_steps": 2}
        line = CommandLine(keys={"model": str(model)}, params=params)
        workload = Workload(job=None, prompts=RANDOM, num=4, command_line=line)
        out = tmp_path / "bench"
        choices = BenchChoices(workload=workload, sweeps=parse_sweeps(sweeps), output=out, **more)
        stream = io.StringIO()
        code = run_bench(choices, Console(file=stream, width=200))
        return code, stream.getvalue(), json.loads((out / "bench.json").read_text())

    return call


Bench = Callable[..., tuple[int, str, Any]]


def test_all_points_are_launched_before_any_is_launched_again(bench: Bench) -> None:
    code, said, data = bench("replicas=1,2", repeat=2)
    assert code == 0
    assert FakeLauncher.launched == [
        *("00-replicas-1/0", "01-replicas-2/0", "00-replicas-1/1", "01-replicas-2/1")
    ]
    assert [point["outputs_per_min"] for point in data["points"]] == [60.0, 120.0]
    assert [point["efficiency"] for point in data["points"]] == [1.0, 1.0]
    assert "all 4 launches made the same outputs, bit for bit" in said
    assert "fastest: replicas 2: 120 outputs/min" in said


def test_what_cannot_run_is_said_first_and_does_not_hold_up_the_rest(bench: Bench) -> None:
    code, said, data = bench("cfg=3,1")
    assert code == 0
    assert [point["status"] for point in data["points"]] == ["refused", "ok"]
    assert said.startswith("cfg 3: cannot run: ")
    assert data["baseline"] == 1


def test_no_point_at_all_is_an_error(bench: Bench) -> None:
    with pytest.raises(PlanError, match=r"cfg 3: .*use --cfg 2"):
        bench("cfg=3,4")


def test_a_launch_that_fails_is_not_tried_again_and_the_next_one_follows(bench: Bench) -> None:
    def act(task: Task, _number: int) -> str:
        if task.layout.replicas == 1:
            raise WorkerError("the workers are gone")
        return "same"

    code, said, data = bench("replicas=1,2", repeat=2, act=act)
    assert code == 3
    assert len(FakeLauncher.launched) == 3
    assert [point["status"] for point in data["points"]] == ["failed", "ok"]
    assert "replicas 1: failed: the workers are gone" in said


def test_outputs_that_must_be_equal_and_are_not_are_said_and_change_the_code(
    bench: Bench,
) -> None:
    def act(_task: Task, number: int) -> str:
        return f"{number}"

    code, said, data = bench("replicas=1,2", act=act, repeat=1, as_json=False)
    assert code == 3
    assert "replicas 2: 4 of 4 outputs differ from the first point" in said
    assert "MUST NOT" in said
    assert not data["outputs"]["equal"]


def test_a_signal_ends_it_and_what_was_measured_is_kept(bench: Bench) -> None:
    def act(_task: Task, number: int) -> str:
        if number == 1:
            raise StoppedError
        return "same"

    code, said, data = bench("replicas=1,2,3", act=act)
    assert code == 75
    assert len(FakeLauncher.launched) == 2
    assert [point["status"] for point in data["points"]] == ["ok", "waiting", "waiting"]
    assert not data["complete"]
    assert "replicas 3: not measured" in said


def test_json_is_the_file_and_nothing_else(bench: Bench) -> None:
    code, said, data = bench("cfg=1,3", as_json=True)
    assert code == 0
    assert json.loads(said) == data


def test_doubtful_points_have_notes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "num_cores", lambda: 2)
    monkeypatch.setattr(run_module, "num_gpus", lambda: 0)
    _, _, data = bench("replicas=2,5")
    assert data["points"][0]["notes"] == []
    idle, crowded = data["points"][1]["notes"]
    assert idle.startswith("5 replicas share 4 micro-batches")
    assert crowded == "5 ranks of 1 threads share 2 cores"


def test_points_that_leave_replicas_to_auto_say_how_many(bench: Bench) -> None:
    _, _, data = bench("in_flight=1,2")
    replicas = data["points"][0]["layout"]["replicas"]
    assert data["points"][0]["label"] == f"in_flight 1, replicas {replicas}"


def test_inside_torchrun_it_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(PlanError, match="outside of torchrun"):
        bench()
