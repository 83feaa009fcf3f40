"""`diffbatch run`: the parent's side of one run, from the job file to the exit code."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from diffbatch.launch.choose import choose_fitting
from diffbatch.launch.devices import num_gpus
from diffbatch.launch.group import WorkerGroup
from diffbatch.launch.layout import pp_partition, splits_unevenly
from diffbatch.launch.prepare import Prepared
from diffbatch.launch.progress import Tally, make_reporter
from diffbatch.launch.signals import stop_on_signals
from diffbatch.launch.summary import Outcome, WorkerFacts, run_facts
from diffbatch.launch.traces import Traces
from diffbatch.output.folder import RunFolder
from diffbatch.output.resume import select
from diffbatch.plan.batches import work_queue
from diffbatch.plan.layout import Layout
from diffbatch.req import MicroBatch
from diffbatch.terminal import printable
from diffbatch.worker.link import Message
from diffbatch.worker.spec import WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoices:
    """How to run a prepared job; what to make is in `Prepared`."""

    fresh: bool = False
    retry_failed: bool = False
    limit: int | None = None
    only: Sequence[str] = ()
    max_restarts: int = 1
    threads: int = 1  # per rank, on the CPU
    profile: bool = False
    as_json: bool = False
    quiet: bool = False


# Makes the micro-batches; tells of every event; returns the signal that stopped it, if one did.
Work = Callable[[Sequence[MicroBatch], Callable[[Message], None]], str | None]


def run_job(prepared: Prepared, choices: RunChoices, console: Console) -> int:
    """Make what the job asks for and is not there yet; returns the exit code.

    Raises the errors of `errors.py` for everything that a user can mend. Launches nothing, and
    imports no torch, when there is nothing to do.
    """

    def work(batches: Sequence[MicroBatch], note: Callable[[Message], None]) -> str | None:
        if not batches:
            return None
        choice = choose_fitting(prepared, len(batches))
        layout = choice.layout
        spec = worker_spec(prepared, layout, choices.threads, profile=choices.profile)
        note({"event": "launch", "layout": asdict(layout), "threads": spec.threads})
        with (
            WorkerGroup(spec, max_restarts=choices.max_restarts, devices=choice.devices) as group,
            stop_on_signals(group.stop) as stopped,
        ):
            for event in group.make(batches):
                note(event)
            for event in group.end():
                note(event)
            return stopped.name

    return carry_out(prepared, choices, console, work)


def carry_out(prepared: Prepared, choices: RunChoices, console: Console, work: Work) -> int:
    """Open the run folder, let `work` make what is missing, merge, and sum up."""
    begin_s = time.monotonic()
    reqs = list(prepared.reqs())
    selected = select(reqs, limit=choices.limit, only=choices.only)
    command = " ".join(sys.argv)
    if prepared.ignored:
        names, model = ", ".join(sorted(prepared.ignored)), prepared.facts.class_name
        _say(console, choices, f"without effect here ({model}): {names}")
    if prepared.batch_size == "auto":
        sizes = ", ".join(map(str, prepared.batch_sizes))
        _say(console, choices, f"batch_size auto: up to {sizes} in one forward, by tokens")
    with RunFolder(prepared.job.output, command=command, fresh=choices.fresh) as folder:
        if folder.moved_aside is not None:
            _say(console, choices, f"the old run is now in {folder.moved_aside}")
        resume = folder.reconcile(reqs, retry_failed=choices.retry_failed)
        if resume.retire:
            num = len(resume.retire)
            what = "1 file" if num == 1 else f"{num} files"
            _say(
                console, choices, f"{what} that the job does not ask for any more: now in retired/"
            )
        batches = work_queue(
            reqs,
            resume.pending & selected,
            batch_size=prepared.batch_size,
            facts=prepared.facts,
        )
        tally = Tally(
            total=len(selected),
            done=len(resume.done & selected),
            failed=len(resume.failed & selected),
        )
        facts = WorkerFacts()
        traces = Traces(root=folder.root, wanted=choices.profile, had_work=bool(batches))
        traces.forget_old()
        stopped_by = _report(work, batches, tally, facts, choices, console)
        records = folder.merge(reqs)
        if batches or not folder.owned:  # a run with nothing to do leaves the last one's facts
            wall_s = round(time.monotonic() - begin_s, 3)
            run = run_facts(prepared, tally, facts)
            folder.write_facts({**run, "command": command, "wall_s": wall_s})
        outcome = Outcome.of(folder.root, selected, records, made=tally.made, signal=stopped_by)
        if choices.as_json:
            console.file.write(json.dumps(outcome.as_dict() | traces.as_dict()) + "\n")
        for line in (*outcome.lines(), *traces.lines()):
            _say(console, choices, line)
            if choices.quiet and outcome.exit_code:  # cron mails what comes here
                sys.stderr.write(f"diffbatch: {printable(line)}\n")
        return outcome.exit_code


def _say(console: Console, choices: RunChoices, text: str) -> None:
    if not (choices.quiet or choices.as_json):
        console.print(Text(printable(text)), soft_wrap=True)


def _report(
    work: Work,
    batches: Sequence[MicroBatch],
    tally: Tally,
    facts: WorkerFacts,
    choices: RunChoices,
    console: Console,
) -> str | None:
    """Run `work` with the reporter that the user chose."""
    if not batches:
        return work(batches, facts.note)
    reporter = make_reporter(tally, console, as_json=choices.as_json, quiet=choices.quiet)

    def note(event: Message) -> None:
        facts.note(event)
        reporter.event(event)

    try:
        return work(batches, note)
    finally:
        reporter.close()


def worker_spec(
    prepared: Prepared, layout: Layout, threads: int, *, profile: bool = False
) -> WorkerSpec:
    """What the workers of this job must know. `threads` per rank count on the CPU only."""
    spec = prepared.job.spec
    return WorkerSpec(
        model_folder=prepared.facts.folder,
        # A label, never a path: it goes into the files, which must not depend on where they lie.
        model_label=Path(prepared.facts.label).name,
        run_folder=prepared.job.output.resolve(),
        layout=layout,
        in_flight=spec.parallel.in_flight,
        partition=pp_partition(prepared),
        uneven=splits_unevenly(prepared, layout),
        profile=profile,
        threads=None if num_gpus() else threads,
        dtype=spec.dtype,
        variant=spec.variant,
        scheduler=prepared.scheduler,
    )
