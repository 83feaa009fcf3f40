"""What is known of every point so far, as plain data: what bench.json holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from diffbatch.bench.measure import Figures, efficiency
from diffbatch.plan.facts import BatchSize

Status = Literal["waiting", "ok", "refused", "failed"]


@dataclass(slots=True, kw_only=True)
class PointResult:
    """One point. `status` is "waiting" until its first launch has ended."""

    number: int
    label: str
    settings: Mapping[str, int]  # what was swept
    status: Status = "waiting"
    reason: str | None = None  # why it was refused or has failed
    layout: Mapping[str, int] = field(default_factory=dict)  # every degree
    world_size: int = 0
    in_flight: int = 0
    batch_size: BatchSize = 0
    num_micro_batches: int = 0
    notes: Sequence[str] = ()
    folders: list[str] = field(default_factory=list)  # run folders, relative to the bench folder
    figures: Figures = field(default_factory=dict)
    efficiency: float | None = None  # per device, against the first point that was measured

    @property
    def rate(self) -> float | None:
        """Requests per second; None when nothing was made."""
        rate: float | None = self.figures.get("requests_per_s")
        return rate

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "number": self.number,
            "label": self.label,
            "settings": dict(self.settings),
            "status": self.status,
            "reason": self.reason,
            "layout": dict(self.layout),
            "world_size": self.world_size,
            "in_flight": self.in_flight,
            "batch_size": self.batch_size,
            "num_micro_batches": self.num_micro_batches,
            "notes": list(self.notes),
            "folders": list(self.folders),
            "efficiency": self.efficiency,
            **self.figures,
        }


def first_measured(results: Sequence[PointResult]) -> PointResult | None:
    """The point that efficiency is relative to."""
    return next((result for result in results if result.rate is not None), None)


def set_efficiencies(results: Sequence[PointResult]) -> None:
    """Fill `efficiency` of every measured point."""
    first = first_measured(results)
    for result in results:
        if first is not None and first.rate is not None and result.rate is not None:
            result.efficiency = efficiency(
                result.rate, result.world_size, first.rate, first.world_size
            )


def best_of(results: Sequence[PointResult]) -> PointResult | None:
    """The point with the highest throughput."""
    measured = [result for result in results if result.rate is not None]
    return max(measured, key=lambda result: result.rate or 0.0, default=None)
