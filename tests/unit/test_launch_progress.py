"""What the user sees while a run goes on: counts, rate, lines for people and for scripts."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import pytest
from rich.console import Console

from diffbatch.launch import progress
from diffbatch.launch.progress import (
    BarReporter,
    JsonReporter,
    PlainReporter,
    QuietReporter,
    Tally,
    make_reporter,
)

HOSTILE = "[red]no[/blue] [/] :cat: \x1b[31mred\x1b[0m"


def record(status: str = "ok", **more: Any) -> dict[str, Any]:
    values = {"id": "r0", "status": status, "file": "a.png", "error": None, **more}
    return {"event": "record", "replica": 0, "record": values}


def plain_console() -> Console:
    return Console(file=io.StringIO(), width=60)


def terminal() -> Console:
    return Console(file=io.StringIO(), width=80, force_terminal=True)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class Clock:
    """Stands in for time.monotonic."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made)
    return made


def tally_of(total: int, clock: Clock, **more: int) -> Tally:
    return Tally(total=total, begin_s=clock(), **more)


def test_counts_follow_the_records(clock: Clock) -> None:
    tally = tally_of(5, clock, done=2)
    tally.note(record("ok"))
    tally.note(record("failed"))
    assert (tally.done, tally.failed, tally.made) == (3, 1, 2)


def test_rate_and_eta_count_this_run_only(clock: Clock) -> None:
    tally = tally_of(12, clock, done=6)
    assert tally.per_minute is None
    assert tally.eta_s is None
    tally.note(record("ok"))
    tally.note(record("failed"))
    clock.now_s += 30
    assert tally.per_minute == 4.0
    assert tally.eta_s == 60.0
    assert tally.summary() == "7 done, 1 failed, of 12, 4.0/min, ETA 1:00"


def test_the_rate_leaves_out_the_time_until_the_first_worker_is_ready(clock: Clock) -> None:
    tally = tally_of(2, clock)
    clock.now_s += 100
    tally.note({"event": "ready", "replica": 0, "device": "cpu"})
    clock.now_s += 30
    tally.note({"event": "ready", "replica": 1, "device": "cpu"})
    tally.note(record())
    clock.now_s += 30
    assert tally.per_minute == 1.0


def test_a_second_without_time_gives_no_rate(clock: Clock) -> None:
    tally = tally_of(2, clock)
    tally.note(record())
    assert tally.per_minute is None
    assert "ETA" not in tally.summary()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3599, "59:59"), (3600, "1:00:00")],
)
def test_times_are_shown_as_on_a_clock(seconds: float, shown: str) -> None:
    assert progress._clock(seconds) == shown


def test_each_replica_says_what_it_does(clock: Clock) -> None:
    tally = tally_of(2, clock)
    told = []
    for event in [
        {"event": "ready", "replica": 1, "device": "cuda:1 H"},
        {"event": "started", "replica": 1, "ids": ["1", "2"], "files": ["a", "b"]},
        {"event": "step", "replica": 1, "steps_done": 3, "steps_total": 8},
    ]:
        tally.note(event)
        told.append(tally.replicas[1])
    assert told == ["ready on cuda:1 H", "making a and 1 more", "step 3/8"]


def test_plain_lines_hold_no_escape_code_and_no_carriage_return(clock: Clock) -> None:
    console = plain_console()
    reporter = PlainReporter(tally_of(3, clock), console)
    reporter.event(record("failed", error="non-finite pixels"))
    for _ in range(2):
        clock.now_s += 11
        reporter.event(record())
    reporter.close()
    text = text_of(console)
    assert "\x1b" not in text
    assert "\r" not in text
    lines = text.splitlines()
    assert lines[0] == "failed: a.png: non-finite pixels"
    assert lines[1].startswith("1 done, 1 failed, of 3")
    assert len(lines) == 3


def test_plain_lines_come_now_and_then_only(clock: Clock) -> None:
    console = plain_console()
    reporter = PlainReporter(tally_of(100, clock), console)
    for _ in range(50):
        clock.now_s += 1
        reporter.event(record())
    assert 4 <= len(text_of(console).splitlines()) <= 6


@pytest.mark.parametrize("make", [plain_console, terminal])
def test_what_a_failure_says_is_shown_literally(make: Any, clock: Clock) -> None:
    """Markup, emoji names and terminal codes in a text are text."""
    console = make()
    reporter = make_reporter(tally_of(1, clock), console, as_json=False, quiet=False)
    assert isinstance(reporter, BarReporter if console.is_terminal else PlainReporter)
    reporter.event(record("failed", file="[red].png", error=HOSTILE))
    reporter.close()
    shown = text_of(console)
    assert "[red].png" in shown
    assert "[red]no[/blue] [/] :cat:" in shown
    assert "\x1b[31mred" not in shown


def test_json_lines_parse_and_carry_the_counts(clock: Clock) -> None:
    stream = io.StringIO()
    reporter = JsonReporter(tally_of(2, clock), stream)
    reporter.event({"event": "connected", "link": object()})
    reporter.event({"event": "ready", "replica": 0, "device": "cpu"})
    reporter.event({"event": "step", "replica": 0, "steps_done": 3, "steps_total": 8})
    reporter.event(record("ok", file="caf\u00e9 \u2028.png"))
    reporter.event({"event": "disconnected"})
    reporter.close()
    ready, step, made = map(json.loads, stream.getvalue().splitlines())
    assert (ready["event"], ready["done"], ready["of"]) == ("ready", 0, 2)
    assert (step["steps_done"], step["steps_total"], step["done"]) == (3, 8, 0)
    assert (made["record"]["file"], made["done"]) == ("caf\u00e9 \u2028.png", 1)


def test_quiet_counts_and_shows_nothing(clock: Clock) -> None:
    console, tally = plain_console(), tally_of(1, clock)
    reporter = make_reporter(tally, console, as_json=False, quiet=True)
    assert isinstance(reporter, QuietReporter)
    reporter.event(record("failed", error="x"))
    reporter.close()
    assert text_of(console) == ""
    assert tally.failed == 1


def test_json_beats_quiet_and_the_bar(clock: Clock) -> None:
    console = terminal()
    reporter = make_reporter(tally_of(1, clock), console, as_json=True, quiet=True)
    reporter.event(record())
    reporter.close()
    assert json.loads(text_of(console))["event"] == "record"


def test_the_bar_shows_counts_rate_and_a_line_per_replica(clock: Clock) -> None:
    console = terminal()
    reporter = make_reporter(tally_of(4, clock, done=1), console, as_json=False, quiet=False)
    reporter.event({"event": "ready", "replica": 1, "device": "cpu"})
    clock.now_s += 60
    reporter.event(record())
    reporter.event(record("failed", error="x"))
    reporter.close()
    shown = text_of(console)
    assert "3/4" in shown
    assert "1 failed" in shown
    assert "2.0/min" in shown
    assert "replica 1: ready on cpu" in shown
