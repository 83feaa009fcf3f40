"""The bench folder and what is known so far: written after every launch, so nothing is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from diffbatch.bench import report
from diffbatch.bench.chart import draw
from diffbatch.bench.compare import Difference, Made, difference
from diffbatch.bench.measure import Trace, figures_of
from diffbatch.bench.requests import Task
from diffbatch.bench.result import PointResult, first_measured, set_efficiencies
from diffbatch.errors import RunFolderError
from diffbatch.output.atomic import write_atomic

JSON, CSV, SVG, PNG = "bench.json", "bench.csv", "bench.svg", "bench.png"
FILES = (JSON, CSV, PNG, SVG)


@dataclass(slots=True, kw_only=True)
class Book:
    """Results of a bench in the folder `root`."""

    root: Path
    facts: Mapping[str, Any]  # of job, model and machine
    results: list[PointResult]
    differences: list[Difference] = field(default_factory=list)  # against the first launch
    num_made: int = 0  # launches with outputs
    _traces: dict[int, list[Trace]] = field(default_factory=dict)
    _first: Made | None = None

    def open(self) -> Path | None:
        """Make the folder; returns where an older bench there was moved to.

        Raises RunFolderError when it holds anything that is not a bench.
        """
        moved = None
        try:
            if self.root.exists() and (not self.root.is_dir() or any(self.root.iterdir())):
                if not (self.root / JSON).exists():
                    raise RunFolderError(
                        "there is something here that is not a bench; choose another --output-dir",
                        place=str(self.root),
                    )
                moved = _move_aside(self.root)
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"cannot be used: {error.strerror}; choose another --output-dir",
                place=str(self.root),
            ) from error
        self.write()
        return moved

    def take(self, task: Task, trace: Trace, folder: Path) -> None:
        """Add one launch to what is known of its point."""
        result = self.results[task.point.number]
        traces = self._traces.setdefault(result.number, [])
        traces.append(trace)
        result.figures = figures_of(traces)
        result.status = "ok" if result.rate is not None else "failed"
        if result.rate is None:
            errors = [record["error"] for record in trace.records if record["error"]]
            result.reason = f"no request succeeded: {errors[0] if errors else 'no record'}"
        files = {r["index"]: (r["sha256"], folder / r["file"]) for r in trace.ok}
        made = Made(point=result.number, label=result.label, settings=task.settings, files=files)
        self._compare(made)
        set_efficiencies(self.results)
        self.write()

    def fail(self, number: int, reason: str) -> None:
        """The launch of a point ended with an error."""
        self.results[number].status, self.results[number].reason = "failed", reason
        self.write()

    def write(self) -> None:
        """All files, each whole or not at all."""
        write_atomic(self.root / CSV, [report.csv_text(self.results).encode()])
        title, subtitle = report.headings(self.facts)
        chart = draw(self.results, title=title, subtitle=subtitle)
        write_atomic(self.root / SVG, [chart.svg().encode()])
        write_atomic(self.root / PNG, [chart.png()])
        report.write_json(self.root / JSON, self._data())

    @property
    def sound(self) -> bool:
        """Nothing failed, and outputs differ only where they may."""
        failed = any(r.status == "failed" or r.figures.get("num_failed") for r in self.results)
        return not failed and all(found.expected for found in self.differences)

    def _compare(self, made: Made) -> None:
        if not made.files:
            return
        self.num_made += 1
        if self._first is None:
            self._first = made
            return
        found = difference(self._first, made)
        if found is not None:
            self.differences.append(found)

    def _data(self) -> dict[str, Any]:
        first = first_measured(self.results)
        return {
            **self.facts,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "complete": all(result.status != "waiting" for result in self.results),
            "baseline": first.number if first else None,
            "outputs": {
                "compared": self.num_made,
                "equal": not self.differences,
                "differences": [found.as_dict() for found in self.differences],
            },
            "points": [result.as_dict() for result in self.results],
        }


def _move_aside(folder: Path) -> Path:
    number = 1
    while (target := folder.with_name(f"{folder.name}.old-{number}")).exists():
        number += 1
    return folder.rename(target)
