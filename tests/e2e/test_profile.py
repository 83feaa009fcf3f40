"""`run --profile`: a trace per rank, the same files as without it, and what run.json tells."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM = 6
STAGES = {"text_encoding", "denoising", "decoding", "saving", "transformer"}
Run = Callable[..., command.Ended]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profile")


@pytest.fixture(scope="module")
def run(tiny: Callable[[str], Path], base: Path) -> Run:
    """Make the job in `base / name`."""
    prompts = [argument for k in range(NUM) for argument in ("--prompt", f"picture {k}")]
    size = ("--height", 32, "--width", 32, "--num-frames", 1, "--num-inference-steps", 4)

    def make(name: str, *more: object) -> command.Ended:
        output = ("--output", base / name, "--model", tiny("wan"))
        return command.run("run", *prompts, *size, *output, *more)

    return make


@pytest.fixture(scope="module")
def plain(run: Run, base: Path) -> Path:
    """The job without a trace, on one rank."""
    run("plain", "--replicas", 1)
    return base / "plain"


def facts(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return found


def ranges(path: Path) -> Counter[str]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        events = json.load(stream)["traceEvents"]
    return Counter(e["name"] for e in events if e.get("cat") == "user_annotation")


def test_one_rank_leaves_one_trace_with_every_stage(run: Run, base: Path, plain: Path) -> None:
    ended = run("one", "--replicas", 1, "--profile")
    assert "1 trace: " in ended.out
    assert [path.name for path in (base / "one" / "profile").iterdir()] == ["rank-0.json.gz"]
    found = ranges(base / "one" / "profile" / "rank-0.json.gz")
    assert found.keys() >= STAGES
    assert 4 <= found["denoising"] <= 10, "a few turns, not the whole run"
    assert command.hashes(base / "one") == command.hashes(plain)
    assert not (plain / "profile").exists()


def test_every_pipeline_rank_leaves_a_trace_and_a_rerun_keeps_it(
    run: Run, base: Path, plain: Path
) -> None:
    ended = run("cut", "--replicas", 1, "--pp", 2, "--profile")
    assert "2 traces, one per rank: " in ended.out
    traces = sorted((base / "cut" / "profile").iterdir())
    assert [path.name for path in traces] == ["rank-0.json.gz", "rank-1.json.gz"]
    for path in traces:
        assert ranges(path).keys() >= {"denoising", "decoding", "transformer"}
    assert command.hashes(base / "cut") == command.hashes(plain)
    overhead = facts(base / "cut")["overhead"]
    assert {rank["num_requests"] for rank in overhead["by_rank"].values()} == {NUM}
    assert all(rank["per_request_s"] >= 0 for rank in overhead["by_rank"].values())

    again = run("cut", "--replicas", 1, "--profile", "--json")
    assert json.loads(again.out) | {"folder": ""} == {
        "event": "end",
        "done": NUM,
        "failed": 0,
        "missing": 0,
        "of": NUM,
        "folder": "",
        "profile": [],
    }
    assert sorted((base / "cut" / "profile").iterdir()) == traces, "nothing was made: they stay"


def test_run_json_tells_where_the_time_went(plain: Path) -> None:
    told = facts(plain)
    records = command.records(plain)
    sums: dict[str, float] = {}
    for record in records:
        for stage, seconds in record["stage_s"].items():
            sums[stage] = sums.get(stage, 0.0) + seconds
    assert told["stage_s"]["total"] == pytest.approx(sums, abs=0.001)
    assert told["stage_s"]["by_rank"] == {"0": told["stage_s"]["total"]}
    overhead = told["overhead"]
    rank = overhead["by_rank"]["0"]
    assert rank["num_requests"] == NUM
    assert rank["waiting_s"] == 0
    assert 0 < overhead["per_request_s"] == rank["per_request_s"]
    stages_s = sum(seconds for stage, seconds in sums.items() if stage != "save")
    assert rank["overhead_s"] == pytest.approx(rank["active_s"] - stages_s, abs=0.005)
