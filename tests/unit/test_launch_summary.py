"""How a run ended: exit code, last words, facts of the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diffbatch.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_SOME_FAILED
from diffbatch.launch.summary import Outcome, WorkerFacts
from diffbatch.req import Record

ROOT = Path("/runs/promo")


def records_of(*statuses: str) -> dict[str, Record]:
    return {
        f"r{i}": Record(
            id=f"r{i}",
            index=i,
            status=status,
            file=f"{i}.png",
            prompt="p",
            seed=0,
            params={},
            error=f"cause {i}" if status == "failed" else None,
        )
        for i, status in enumerate(statuses)
    }


def outcome_of(*statuses: str, selected: int | None = None, **more: Any) -> Outcome:
    """`selected`: the first so many ids; more than there are records means that some miss."""
    num = len(statuses) if selected is None else selected
    ids = {f"r{i}" for i in range(num)}
    return Outcome.of(ROOT, ids, records_of(*statuses), **{"made": 0, "signal": None, **more})


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (outcome_of("ok", "ok"), EXIT_OK),
        (outcome_of(), EXIT_OK),
        (outcome_of("ok", "failed"), EXIT_SOME_FAILED),
        (outcome_of("ok", selected=2), EXIT_INTERRUPTED),
        (outcome_of("failed", selected=2), EXIT_INTERRUPTED),
        (outcome_of("ok", "ok", signal="SIGTERM"), EXIT_OK),
        (outcome_of("ok", "failed", selected=1), EXIT_OK),
    ],
)
def test_the_manifest_decides_the_exit_code(outcome: Outcome, code: int) -> None:
    assert outcome.exit_code == code


@pytest.mark.parametrize(
    ("outcome", "lines"),
    [
        (outcome_of("ok", made=1), ["1 of 1 done, 1 of them now: /runs/promo"]),
        (outcome_of("ok"), ["1 of 1 done, nothing left to do: /runs/promo"]),
        (
            outcome_of("ok", "failed", "failed", made=3),
            [
                "1 of 3 done, 3 of them now: /runs/promo",
                "2 failed, the first: 1.png: cause 1",
                "try them again with --retry-failed",
            ],
        ),
        (
            outcome_of("ok", selected=3, signal="SIGUSR1"),
            [
                "stopped by SIGUSR1: 1 of 3 done in /runs/promo",
                "run the same command again to go on",
            ],
        ),
        (
            outcome_of("ok", selected=3),
            ["stopped: 1 of 3 done in /runs/promo", "run the same command again to go on"],
        ),
    ],
)
def test_the_last_words_say_what_to_do_next(outcome: Outcome, lines: list[str]) -> None:
    assert list(outcome.lines()) == lines


def test_a_folder_below_the_working_folder_is_shown_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = Outcome.of(tmp_path / "out", set(), {}, made=0, signal=None)
    assert next(outcome.lines()).endswith(": out")


def test_the_last_line_of_json_has_every_count() -> None:
    assert outcome_of("ok", "failed", selected=4).as_dict() == {
        "event": "end",
        "done": 1,
        "failed": 1,
        "missing": 2,
        "of": 4,
        "folder": "/runs/promo",
    }


def test_facts_of_the_workers_come_from_their_events() -> None:
    facts = WorkerFacts()
    for event in [
        {"event": "connected"},
        {"event": "launch", "layout": {"replicas": 2}, "threads": 1},
        {"event": "ready", "rank": 1, "replica": 1, "device": "cuda:1", "load": {}},
        {"event": "connected"},
        {"event": "ready", "rank": 1, "replica": 1, "device": "cuda:3", "load": {"t": 5}},
        {"event": "rank", "rank": 1, "replica": 1, "busy_s": 1.0, "wall_s": 3.0},
        {"event": "rank", "rank": 0, "replica": 0, "busy_s": 0.0, "wall_s": 0.0},
        {"event": "left", "rank": 0, "replica": 0},
        {"event": "step", "replica": 0},
    ]:
        facts.note(event)
    assert facts.layout == {"replicas": 2, "threads": 1}
    assert facts.devices == {1: "cuda:3"}
    assert facts.loaded == {1: {"t": 5}}
    assert facts.busy_share == {1: 0.333}
    assert facts.num_starts == 2
