"""What the user sees while the workers run: a bar, plain lines, JSON events, or nothing."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import IO, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from diffbatch.terminal import printable
from diffbatch.worker.link import Message

_PLAIN_EVERY_S = 10.0
_RATE_AFTER = 1  # records of this run before a rate is worth showing


@dataclass(slots=True)
class Tally:
    """Counts of one run, fed by the workers' events."""

    total: int  # selected requests
    done: int = 0  # those that are ok, earlier runs included
    failed: int = 0
    made: int = 0  # ok or failed, in this run
    begin_s: float = field(default_factory=time.monotonic)
    replicas: dict[int, str] = field(default_factory=dict)  # what each replica does

    def note(self, event: Message) -> None:
        """Take in one event."""
        replica = event.get("replica", 0)
        match event["event"]:
            case "ready":
                if not self.replicas:
                    self.begin_s = time.monotonic()
                self.replicas[replica] = f"ready on {event['device']}"
            case "started":
                first, *more = event["files"]
                self.replicas[replica] = f"making {first}" + (
                    f" and {len(more)} more" if more else ""
                )
            case "step":
                self.replicas[replica] = f"step {event['steps_done']}/{event['steps_total']}"
            case "record":
                ok = event["record"]["status"] == "ok"
                self.done += ok
                self.failed += not ok
                self.made += 1

    @property
    def per_minute(self) -> float | None:
        """Outputs per minute of this run; None before the first."""
        elapsed_s = time.monotonic() - self.begin_s
        return self.made * 60 / elapsed_s if self.made >= _RATE_AFTER and elapsed_s > 0 else None

    @property
    def eta_s(self) -> float | None:
        """Seconds left at this rate."""
        rate = self.per_minute
        left = self.total - self.done - self.failed
        return left * 60 / rate if rate else None

    def summary(self) -> str:
        """One line without a line break."""
        parts = [f"{self.done} done", f"{self.failed} failed", f"of {self.total}"]
        if self.per_minute is not None:
            parts.append(f"{self.per_minute:.1f}/min")
        if self.eta_s is not None:
            parts.append(f"ETA {_clock(self.eta_s)}")
        return ", ".join(parts)


class Reporter(Protocol):
    """Shows a run as it goes."""

    def event(self, event: Message) -> None:
        """Take in one event of the workers."""

    def close(self) -> None:
        """The workers are done."""


class QuietReporter:
    """Counts, and shows nothing."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def event(self, event: Message) -> None:
        """See `Reporter.event`."""
        self._tally.note(event)

    def close(self) -> None:
        """See `Reporter.close`."""


class JsonReporter:
    """One JSON object per line, for scripts."""

    def __init__(self, tally: Tally, stream: IO[str]) -> None:
        self._tally = tally
        self._stream = stream

    def event(self, event: Message) -> None:
        """See `Reporter.event`."""
        self._tally.note(event)
        if event["event"] in {"connected", "disconnected", "launch"}:
            return
        counts = {"done": self._tally.done, "failed": self._tally.failed}
        self._stream.write(json.dumps({**event, **counts, "of": self._tally.total}) + "\n")
        self._stream.flush()

    def close(self) -> None:
        """See `Reporter.close`."""


class PlainReporter:
    """A line now and then, for logs: no bar, no escape codes."""

    def __init__(self, tally: Tally, console: Console) -> None:
        self._tally = tally
        self._console = console
        self._last_s = time.monotonic()

    def event(self, event: Message) -> None:
        """See `Reporter.event`."""
        self._tally.note(event)
        if event["event"] == "record" and event["record"]["status"] == "failed":
            record = event["record"]
            self._say(f"failed: {record['file']}: {record['error']}")
        elif time.monotonic() - self._last_s >= _PLAIN_EVERY_S:
            self._last_s = time.monotonic()
            self._say(self._tally.summary())

    def close(self) -> None:
        """See `Reporter.close`."""

    def _say(self, line: str) -> None:
        self._console.print(Text(printable(line)), soft_wrap=True)


class BarReporter:
    """A live bar with rate and ETA, and a line per replica."""

    def __init__(self, tally: Tally, console: Console) -> None:
        self._tally = tally
        self._console = console
        self._progress = Progress(
            BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}"), console=console
        )
        self._task: TaskID = self._progress.add_task(
            "", total=tally.total, completed=tally.done + tally.failed, text="starting the workers"
        )
        self._live = Live(self._render(), console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def event(self, event: Message) -> None:
        """See `Reporter.event`."""
        tally = self._tally
        tally.note(event)
        if event["event"] == "record" and event["record"]["status"] == "failed":
            record = event["record"]
            line = f"failed: {record['file']}: {record['error']}"
            self._live.console.print(Text(printable(line)), soft_wrap=True)
        self._progress.update(
            self._task, completed=tally.done + tally.failed, text=self._bar_text()
        )
        self._live.update(self._render())

    def close(self) -> None:
        """See `Reporter.close`."""
        self._live.stop()

    def _bar_text(self) -> str:
        tally = self._tally
        rate, eta = tally.per_minute, tally.eta_s
        parts = [f"{tally.failed} failed"] if tally.failed else []
        parts += [f"{rate:.1f}/min"] if rate is not None else ["starting"]
        parts += [f"ETA {_clock(eta)}"] if eta is not None else []
        return "  ".join(parts)

    def _render(self) -> RenderableType:
        lines: list[RenderableType] = [self._progress]
        for replica, doing in sorted(self._tally.replicas.items()):
            lines.append(Text(f"  replica {replica}: {doing}", overflow="ellipsis", no_wrap=True))
        return Group(*lines)


def make_reporter(tally: Tally, console: Console, *, as_json: bool, quiet: bool) -> Reporter:
    """The reporter that fits the flags and the terminal."""
    if as_json:
        return JsonReporter(tally, console.file)
    if quiet:
        return QuietReporter(tally)
    return BarReporter(tally, console) if console.is_terminal else PlainReporter(tally, console)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
