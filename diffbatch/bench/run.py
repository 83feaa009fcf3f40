"""`diffbatch bench`: checks every point, launches those that can run, says what was found."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from diffbatch.bench import report
from diffbatch.bench.book import FILES, JSON, Book
from diffbatch.bench.point import Launcher, StoppedError
from diffbatch.bench.requests import Task, Workload, make_task
from diffbatch.bench.result import PointResult, best_of
from diffbatch.bench.sweep import Point, Sweep, points_of
from diffbatch.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_SOME_FAILED,
    DiffbatchError,
    JobError,
    PlanError,
    Problem,
)
from diffbatch.launch.devices import num_cores, num_gpus
from diffbatch.launch.inside import inside_torchrun
from diffbatch.launch.run import worker_spec
from diffbatch.launch.signals import stop_on_signals
from diffbatch.launch.summary import package_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchChoices:
    """What to measure, and how often."""

    workload: Workload
    sweeps: Sequence[Sweep]
    output: Path
    warmup: int = 1  # how often every replica is filled before the requests that count
    repeat: int = 1  # launches per point
    threads: int = 1  # per rank, on the CPU
    as_json: bool = False


def run_bench(choices: BenchChoices, console: Console) -> int:
    """Measure every point that can run; returns the exit code.

    Raises the errors of `errors.py` for a job that is wrong by itself, and when no point can run.
    """
    if inside_torchrun():
        raise PlanError("bench starts torchrun itself, once per point; run it outside of torchrun")
    points = points_of(choices.sweeps)
    choices.workload.check(points)
    results, tasks = _check(points, choices)
    if not tasks:
        raise PlanError([Problem(result.label, result.reason or "") for result in results])
    voice = _Voice(console, quiet=choices.as_json)
    voice.say_all(report.remarks([result for result in results if result.status == "refused"]))
    book = Book(root=choices.output, facts=_facts(choices, tasks[0]), results=results)
    moved = book.open()
    if moved is not None:
        voice.say(f"the old bench is now in {moved}")
    command = " ".join(sys.argv)
    launcher = Launcher(warmup=choices.warmup, threads=choices.threads, command=command)
    with stop_on_signals(launcher.stop) as signal:
        _measure(tasks, book, launcher, choices.repeat, voice)
    if signal:
        voice.say(f"stopped by {signal.name}; what was measured is kept")
    if choices.as_json:
        console.file.write((book.root / JSON).read_text(encoding="utf-8"))
    else:
        _last_words(book, console, voice)
    if launcher.stopped:
        return EXIT_INTERRUPTED
    return EXIT_OK if book.sound else EXIT_SOME_FAILED


class _Voice:
    """Lines for people; none with --json."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console, self._quiet = console, quiet

    def say(self, text: str, style: str = "") -> None:
        if not self._quiet:
            self._console.print(report.shown(text), style=style, soft_wrap=True)

    def say_all(self, texts: Iterator[str]) -> None:
        for text in texts:
            self.say(text)


def _check(points: Sequence[Point], choices: BenchChoices) -> tuple[list[PointResult], list[Task]]:
    """A result for every point, and a task for each that can run."""
    results, tasks = [], []
    for point in points:
        result = PointResult(number=point.number, label=point.label, settings=point.settings)
        results.append(result)
        try:
            task = make_task(choices.workload, point)
        except (JobError, PlanError) as error:
            result.status, result.reason = "refused", _reason(error)
            continue
        tasks.append(task)
        if point.settings and "replicas" not in point.settings:
            result.label += f", replicas {task.layout.replicas}"  # not swept, perhaps auto
        result.layout = asdict(task.layout)
        result.world_size = task.layout.world_size
        result.in_flight = worker_spec(task.prepared, task.layout, choices.threads).flights
        result.batch_size = task.prepared.batch_size
        result.num_micro_batches = len(task.batches)
        result.notes = list(_notes(task, choices.threads))
    return results, tasks


def _notes(task: Task, threads: int) -> Iterator[str]:
    replicas, world_size = task.layout.replicas, task.layout.world_size
    if len(task.batches) < replicas:
        yield (
            f"{replicas} replicas share {len(task.batches)} micro-batches, so some are idle; "
            "raise --num-prompts"
        )
    if not num_gpus() and world_size * threads > num_cores():
        yield f"{world_size} ranks of {threads} threads share {num_cores()} cores"


def _measure(
    tasks: Sequence[Task], book: Book, launcher: Launcher, repeat: int, voice: _Voice
) -> None:
    """All points, then all again: a machine that changes its pace meets every point."""
    turns = [(task, number) for number in range(repeat) for task in tasks]
    for count, (task, number) in enumerate(turns, start=1):
        result = book.results[task.point.number]
        if launcher.stopped:
            return
        if result.status == "failed":
            continue
        name = f"{task.point.name}/{number}"
        result.folders.append(name)
        try:
            trace = launcher.launch(task, book.root / name)
        except StoppedError:
            return
        except DiffbatchError as error:
            book.fail(result.number, _reason(error))
        else:
            book.take(task, trace, book.root / name)
        voice.say(f"[{count}/{len(turns)}] {report.one_line(result)}")


def _last_words(book: Book, console: Console, voice: _Voice) -> None:
    report.print_tables(book.results, console)
    voice.say_all(report.remarks(book.results))
    for found in book.differences:
        voice.say(str(found), style="" if found.expected else "bold red")
    if book.num_made > 1 and not book.differences:
        voice.say(f"all {book.num_made} launches made the same outputs, bit for bit")
    best = best_of(book.results)
    if best is not None and len(book.results) > 1:
        voice.say(f"fastest: {report.one_line(best)}")
    voice.say(f"{book.root}: {', '.join(FILES)}")


def _facts(choices: BenchChoices, task: Task) -> dict[str, Any]:
    """What bench.json says of job, model and machine."""
    model, spec = task.prepared.facts, task.prepared.job.spec
    return {
        "command": " ".join(sys.argv),
        "machine": {**report.machine(), "num_gpus": num_gpus()},
        "versions": package_versions(),
        "model": {
            "name": model.label,
            "class": model.class_name,
            "fingerprint": model.fingerprint,
            "weight_bytes": model.weight_bytes,
        },
        "dtype": spec.dtype,
        "threads": None if num_gpus() else choices.threads,
        "requests": {
            "source": choices.workload.describe(),
            "num": len(task.reqs),
            "warmup": choices.warmup,
            "repeat": choices.repeat,
            "params": task.reqs[0].params.as_dict(),
        },
        "sweeps": [{"axis": sweep.axis, "values": list(sweep.values)} for sweep in choices.sweeps],
    }


def _reason(error: DiffbatchError) -> str:
    return "; ".join(map(str, error.problems))
