"""One launch of one point: start, warm up, make the counted requests, leave."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path

from diffbatch.bench.measure import Trace
from diffbatch.bench.requests import Task, warmup_batches
from diffbatch.launch.group import WorkerGroup
from diffbatch.launch.progress import Tally
from diffbatch.launch.run import worker_spec
from diffbatch.launch.summary import WorkerFacts, run_facts
from diffbatch.output.folder import RunFolder
from diffbatch.worker.link import Message
from diffbatch.worker.spec import WorkerSpec

_MAX_EXTRA_ROUNDS = 5  # of warm-up, until each replica has made something


class StoppedError(Exception):
    """A signal ended the launch before everything was made."""


class Launcher:
    """Runs tasks one after the other; `stop` may come from a signal handler at any time."""

    def __init__(self, *, warmup: int, threads: int, command: str) -> None:
        self._warmup = warmup
        self._threads = threads
        self._command = command
        self._group: WorkerGroup | None = None
        self.stopped = False

    def stop(self) -> None:
        """End the launch that is under way, and let none follow."""
        self.stopped = True
        if self._group is not None:
            self._group.stop()

    def launch(self, task: Task, folder: Path) -> Trace:
        """Make the requests of `task` in the run folder `folder`, which must not exist.

        Raises StoppedError, WorkerError and PlanError. What was made stays in the folder.
        """
        spec = worker_spec(task.prepared, task.layout, self._threads)
        spec = replace(spec, run_folder=folder.resolve())
        with RunFolder(folder, command=self._command) as run_folder:
            run_folder.reconcile(task.reqs)
            tally, facts = Tally(total=len(task.reqs)), WorkerFacts()
            facts.note({"event": "launch", "layout": asdict(task.layout), "threads": spec.threads})
            counted = frozenset(req.id for req in task.reqs)
            trace = Trace(layout=task.layout, begin_s=time.time(), counted=counted)

            def note(event: Message) -> None:
                trace.note(event, time.time())
                facts.note(event)
                if event["event"] != "record" or event["record"]["id"] in counted:
                    tally.note(event)

            try:
                self._work(task, spec, note)
            finally:
                run_folder.merge(task.reqs)
                made = run_facts(task.prepared, tally, facts)
                run_folder.write_facts({**made, "command": self._command})
        return trace

    def _work(self, task: Task, spec: WorkerSpec, note: Callable[[Message], None]) -> None:
        try:
            with WorkerGroup(spec, devices=task.choice.devices) as self._group:
                group = self._group
                if self.stopped:  # by a signal just before there was a group to tell
                    group.stop()
                _drain(group.until_ready(), note)
                self._warm_up(group, task, spec, note)
                _drain(group.make(task.batches), note)
                for event in group.end():
                    note(event)
        finally:
            self._group = None

    def _warm_up(
        self, group: WorkerGroup, task: Task, spec: WorkerSpec, note: Callable[[Message], None]
    ) -> None:
        """Fill every replica `warmup` times, and again until each has made something."""
        seen: set[int] = set()

        def look(event: Message) -> None:
            note(event)
            if event["event"] == "record":
                seen.add(event["record"]["replica"])

        num = task.layout.replicas * spec.flights
        for number in range(self._warmup + _MAX_EXTRA_ROUNDS if self._warmup else 0):
            if number >= self._warmup and len(seen) == task.layout.replicas:
                break
            _drain(group.make(warmup_batches(task.batches, num, number * num)), look)


def _drain(events: Iterable[Message], note: Callable[[Message], None]) -> None:
    for event in events:
        if event["event"] == "stopped":
            raise StoppedError
        note(event)
