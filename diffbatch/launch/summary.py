"""What a run leaves behind besides its files: facts for run.json, last words, the exit code."""

from __future__ import annotations

import platform
import socket
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from diffbatch.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_SOME_FAILED
from diffbatch.launch.prepare import Prepared
from diffbatch.launch.progress import Tally
from diffbatch.launch.times import overhead_facts, stage_facts
from diffbatch.req import RecordHead
from diffbatch.worker.link import Message

_PACKAGES = ("diffbatch", "torch", "diffusers", "transformers", "numpy", "pillow")


@dataclass(slots=True)
class WorkerFacts:
    """What run.json will say of the workers; filled from their events."""

    layout: dict[str, Any] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)  # by rank, as the next four
    loaded: dict[int, Any] = field(default_factory=dict)
    busy_share: dict[int, float] = field(default_factory=dict)
    times: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    num_starts: int = 0

    def note(self, event: Message) -> None:
        """Take in one event."""
        match event["event"]:
            case "launch":
                self.layout = {**event["layout"], "threads": event["threads"]}
            case "connected":
                self.num_starts += 1
            case "ready":
                self.devices[event["rank"]] = event["device"]
                self.loaded[event["rank"]] = event["load"]
            case "rank":
                self.times[event["rank"]] = event
                if event["wall_s"] > 0:
                    self.busy_share[event["rank"]] = round(event["busy_s"] / event["wall_s"], 3)


def package_versions() -> dict[str, str]:
    """Of Python and of everything that has a say in the pixels."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


def run_facts(prepared: Prepared, tally: Tally, facts: WorkerFacts) -> dict[str, Any]:
    """The part of run.json that tells of the job, the model, the machine and the totals."""
    job, model = prepared.job, prepared.facts
    return {
        "job": str(job.path.absolute()) if job.path else None,
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": package_versions(),
        "model": {
            "name": model.label,
            "class": model.class_name,
            "fingerprint": model.fingerprint,
            "dtype": job.spec.dtype,
        },
        "batch_size": {"asked": job.spec.batch_size, "used": prepared.batch_sizes},
        "host": socket.gethostname(),
        "layout": facts.layout,
        "devices": _by_rank(facts.devices),
        "transformers": _by_rank(facts.loaded),  # bytes read and held, where they are cut
        "busy_share": _by_rank(facts.busy_share),
        "stage_s": stage_facts(facts.times),
        "overhead": overhead_facts(facts.times),
        "num_starts": facts.num_starts,
        "totals": {
            "selected": tally.total,
            "done": tally.done,
            "failed": tally.failed,
            "made": tally.made,
        },
    }


def _by_rank(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(rank): value for rank, value in sorted(values.items()) if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended, as the manifest tells it: torchrun hides its children's exit codes."""

    root: Path
    total: int  # selected requests
    done: int
    failed: int
    made: int  # in this run
    first_error: str | None
    signal: str | None  # that stopped the run

    @classmethod
    def of(
        cls,
        root: Path,
        selected: Set[str],
        records: Mapping[str, RecordHead],
        *,
        made: int,
        signal: str | None,
    ) -> Self:
        """Count the records of the selected ids."""
        found = [records[req_id] for req_id in selected if req_id in records]
        failed = sorted((r for r in found if r.status == "failed"), key=lambda r: r.index)
        return cls(
            root=root,
            total=len(selected),
            done=len(found) - len(failed),
            failed=len(failed),
            made=made,
            first_error=f"{failed[0].file}: {failed[0].error}" if failed else None,
            signal=signal,
        )

    @property
    def missing(self) -> int:
        """Selected requests without any record."""
        return self.total - self.done - self.failed

    @property
    def exit_code(self) -> int:
        """See the table in the documentation of `run`."""
        if self.missing:
            return EXIT_INTERRUPTED
        return EXIT_SOME_FAILED if self.failed else EXIT_OK

    def as_dict(self) -> dict[str, Any]:
        """The last line of `--json`."""
        counts = {"done": self.done, "failed": self.failed, "missing": self.missing}
        return {"event": "end", **counts, "of": self.total, "folder": str(self.root)}

    def lines(self) -> Iterator[str]:
        """The last words on the terminal."""
        if self.missing:
            by = f" by {self.signal}" if self.signal else ""
            yield f"stopped{by}: {self.done} of {self.total} done in {shown(self.root)}"
            yield "run the same command again to go on"
            return
        made = f"{self.made} of them now" if self.made else "nothing left to do"
        yield f"{self.done} of {self.total} done, {made}: {shown(self.root)}"
        if self.failed:
            yield f"{self.failed} failed, the first: {self.first_error}"
            yield "try them again with --retry-failed"


def shown(root: Path) -> str:
    """`root` relative to here when it lies below."""
    here = Path.cwd()
    return str(root.relative_to(here)) if root.is_relative_to(here) else str(root)
