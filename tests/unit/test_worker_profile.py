"""Which turns a profiled rank records, and what it leaves when a job is short."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerAction as Action
from torch.profiler import record_function

from diffbatch.worker.profile import NUM_TURNS, TurnProfiler, Window, mark_forwards

CPU = torch.device("cpu")


def actions(*steps_left: int | None) -> str:
    """One letter per turn: n(one), w(armup), r(ecord), s(ave)."""
    letters = {
        Action.NONE: "n",
        Action.WARMUP: "w",
        Action.RECORD: "r",
        Action.RECORD_AND_SAVE: "s",
    }
    window = Window()
    return "".join(letters[window.next(left)] for left in steps_left)


@pytest.mark.parametrize(
    ("steps_left", "expected"),
    [
        ((7, 6, 5, 4, 3, 2, 1, 7, 6, 5, 4, 3, 2), "nnnwwrrrrrsnn"),
        ((3, 2, 1, 3, 2, 1, 3, 2, 1), "wwrrrrrsn"),
        ((2, 1), "wr"),
        ((1,), "r"),
        ((1, 1, 1, 1, 1, 1, 1), "rrrrrsn"),
        ((None, None, 4, 3, 2, 1, None), "nnwwrrr"),
        ((4, 9, 8, 2, 1), "wwwrr"),  # the first one was dropped: warm-up goes on
        ((5, 4), "nw"),
    ],
)
def test_it_records_from_the_last_steps_of_the_first_micro_batch(
    steps_left: tuple[int | None, ...], expected: str
) -> None:
    assert actions(*steps_left) == expected


def test_a_window_ends_after_so_many_turns() -> None:
    assert actions(*[1] * 40) == "r" * (NUM_TURNS - 1) + "s" + "n" * (40 - NUM_TURNS)


def ranges(path: Path) -> list[str]:
    with gzip.open(path, "rt") as stream:
        events = json.load(stream)["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == "user_annotation"]


@pytest.mark.parametrize(("num_turns", "num_recorded"), [(1, 1), (3, 1), (20, 2)])
def test_a_trace_is_written_however_short_the_job(
    tmp_path: Path, num_turns: int, num_recorded: int
) -> None:
    path = tmp_path / "profile" / "rank-0.json.gz"
    profiler = TurnProfiler(path, CPU)
    for turn in range(num_turns):
        profiler.begin_turn(num_turns - turn)
        with record_function("denoising"):
            torch.ones(2).add(1)
    profiler.close()
    assert ranges(path).count("denoising") == num_recorded
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_a_trace_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("in the way")
    profiler = TurnProfiler(tmp_path / "profile" / "rank-0.json.gz", CPU)
    profiler.begin_turn(1)
    profiler.close()
    assert (tmp_path / "profile").read_text() == "in the way"


def test_a_marked_forward_is_the_same_forward(tmp_path: Path) -> None:
    model: Any = torch.nn.Linear(2, 2)
    before = model(torch.ones(2))
    mark_forwards(SimpleNamespace(transformer=model, transformer_2=None))
    profiler = TurnProfiler(tmp_path / "profile" / "rank-3.json.gz", CPU)
    profiler.begin_turn(1)
    after = model(torch.ones(2))
    profiler.close()
    assert torch.equal(before, after)
    assert "transformer" in ranges(tmp_path / "profile" / "rank-3.json.gz")
