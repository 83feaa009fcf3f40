"""`diffbatch run`: the parent's side of one run, from the job file to the exit code."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from diffbatch.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_SOME_FAILED
from diffbatch.launch.devices import auto_replicas, num_gpus
from diffbatch.launch.group import WorkerGroup
from diffbatch.launch.prepare import Prepared
from diffbatch.launch.progress import Tally, make_reporter
from diffbatch.launch.signals import stop_on_signals
from diffbatch.output.folder import RunFolder
from diffbatch.output.resume import Resume, select
from diffbatch.plan.batches import work_queue
from diffbatch.req import MicroBatch, Record
from diffbatch.worker.link import Message
from diffbatch.worker.spec import WorkerSpec

_PACKAGES = ("diffbatch", "torch", "diffusers", "transformers", "numpy", "pillow")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChoices:
    """How to run a prepared job; what to make is in `Prepared`."""

    fresh: bool = False
    retry_failed: bool = False
    limit: int | None = None
    only: Sequence[str] = ()
    max_restarts: int = 1
    threads: int = 1  # per rank, on the CPU
    as_json: bool = False
    quiet: bool = False


@dataclass(slots=True)
class _Facts:
    """What run.json will say of the workers; filled from their events."""

    devices: dict[int, str] = field(default_factory=dict)
    busy_share: dict[int, float] = field(default_factory=dict)
    num_starts: int = 0

    def note(self, event: Message) -> None:
        match event["event"]:
            case "connected":
                self.num_starts += 1
            case "ready":
                self.devices[event["replica"]] = event["device"]
            case "left" if event["wall_s"] > 0:
                share = event["busy_s"] / event["wall_s"]
                self.busy_share[event["replica"]] = round(share, 3)


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
        replicas = _num_replicas(prepared, len(batches))
        spec = worker_spec(prepared, replicas)
        threads = None if num_gpus() else choices.threads
        with (
            WorkerGroup(spec, max_restarts=choices.max_restarts, threads=threads) as group,
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
    command = " ".join(sys.argv)
    if prepared.ignored:
        names, model = ", ".join(sorted(prepared.ignored)), prepared.facts.class_name
        _say(console, choices, f"without effect here ({model}): {names}")
    with RunFolder(prepared.job.output, command=command, fresh=choices.fresh) as folder:
        if folder.moved_aside is not None:
            _say(console, choices, f"the old run is now in {folder.moved_aside}")
        resume = folder.reconcile(reqs, retry_failed=choices.retry_failed)
        selected = select(reqs, limit=choices.limit, only=choices.only)
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
        facts = _Facts()
        stopped_by = _report(work, batches, tally, facts, choices, console)
        records = folder.merge(reqs)
        folder.write_facts(_run_facts(prepared, choices, tally, facts, begin_s, command))
        return _conclude(folder.root, tally, records, selected, stopped_by, choices, console)


def _report(
    work: Work,
    batches: Sequence[MicroBatch],
    tally: Tally,
    facts: _Facts,
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


def _num_replicas(prepared: Prepared, num_batches: int) -> int:
    asked = prepared.job.spec.parallel.replicas
    return auto_replicas(prepared.facts, num_batches) if asked == "auto" else int(asked)


def worker_spec(prepared: Prepared, replicas: int) -> WorkerSpec:
    """What the workers of this job must know."""
    spec = prepared.job.spec
    return WorkerSpec(
        model_folder=prepared.facts.folder,
        # A label, never a path: it goes into the files, which must not depend on where they lie.
        model_label=Path(prepared.facts.label).name,
        run_folder=prepared.job.output.resolve(),
        replicas=replicas,
        dtype=spec.dtype,
        variant=spec.variant,
        scheduler=prepared.scheduler,
    )


def _run_facts(
    prepared: Prepared,
    choices: RunChoices,
    tally: Tally,
    facts: _Facts,
    begin_s: float,
    command: str,
) -> dict[str, Any]:
    job = prepared.job
    return {
        "job": str(job.path.absolute()) if job.path else None,
        "command": command,
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_s": round(time.monotonic() - begin_s, 3),
        "versions": {"python": platform.python_version(), **{p: version(p) for p in _PACKAGES}},
        "model": {
            "name": prepared.facts.label,
            "class": prepared.facts.class_name,
            "fingerprint": prepared.facts.fingerprint,
        },
        "layout": {"replicas": max(len(facts.devices), 0), "threads": choices.threads},
        "host": socket.gethostname(),
        "devices": {str(replica): device for replica, device in sorted(facts.devices.items())},
        "busy_share": {str(r): share for r, share in sorted(facts.busy_share.items())},
        "num_starts": facts.num_starts,
        "totals": {"selected": tally.total, "done": tally.done, "failed": tally.failed},
        "made": tally.made,
    }


def _conclude(
    root: Path,
    tally: Tally,
    records: dict[str, Record],
    selected: frozenset[str],
    stopped_by: str | None,
    choices: RunChoices,
    console: Console,
) -> int:
    """Print the summary; the exit code comes from the manifest, not from the workers."""
    ok = sum(records[i].status == "ok" for i in selected if i in records)
    failed = [records[i] for i in selected if i in records and records[i].status == "failed"]
    missing = len(selected) - ok - len(failed)
    if choices.as_json:
        import json

        summary = {"event": "end", "done": ok, "failed": len(failed), "missing": missing}
        print(json.dumps({**summary, "of": tally.total, "folder": str(root)}), flush=True)  # noqa: T201
    if stopped_by is not None and missing:
        _say(console, choices, f"stopped by {stopped_by}: {ok} of {tally.total} done in {root}")
        _say(console, choices, "run the same command again to go on")
        return EXIT_INTERRUPTED
    made = f", {tally.made} of them now" if tally.made else ", nothing left to do"
    _say(console, choices, f"{ok} of {tally.total} done{made}: {_shown(root)}")
    if failed:
        _say(console, choices, f"{len(failed)} failed, the first: {failed[0].error}")
        _say(console, choices, "try them again with --retry-failed")
        return EXIT_SOME_FAILED
    return EXIT_OK


def _say(console: Console, choices: RunChoices, text: str) -> None:
    if not (choices.quiet or choices.as_json):
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _shown(root: Path) -> str:
    """`root` relative to here when it lies below."""
    here = Path(os.getcwd())
    return str(root.relative_to(here)) if root.is_relative_to(here) else str(root)
