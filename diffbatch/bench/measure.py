"""From the events of launches to figures: rates, latencies, busy shares, memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from diffbatch.launch.times import overhead_per_request_s
from diffbatch.plan.layout import Layout

PERCENTILES = (50, 95, 99)

Figures = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Trace:
    """What one launch told, as far as it is measured; filled by `note`."""

    layout: Layout
    begin_s: float  # when the launch began; all times are seconds of the host's clock
    counted: frozenset[str]  # ids; others are warm-up
    connected_s: float = 0.0
    ready_s: dict[int, float] = field(default_factory=dict)  # by rank, as the next three
    load_s: dict[int, float] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    started_s: dict[str, float] = field(default_factory=dict)  # by id, as the next
    recorded_s: dict[str, float] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)

    def note(self, event: Mapping[str, Any], now_s: float) -> None:
        """Take in one event. Its own time counts before that of its arrival."""
        at_s = float(event.get("time_s", now_s))
        match event["event"]:
            case "connected":
                self.connected_s = at_s
            case "ready":
                self.ready_s[event["rank"]] = at_s
                self.load_s[event["rank"]] = event["load_s"]
                self.devices[event["rank"]] = event["device"]
            case "started":
                for req_id in self.counted.intersection(event["ids"]):
                    self.started_s.setdefault(req_id, at_s)
            case "record" if event["record"]["id"] in self.counted:
                self.recorded_s[event["record"]["id"]] = at_s
                self.records.append(event["record"])
            case "rank":
                self.ranks[event["rank"]] = {
                    name: value for name, value in event.items() if name not in {"event", "rank"}
                }

    @property
    def ok(self) -> list[dict[str, Any]]:
        """Records of the counted requests that succeeded."""
        return [record for record in self.records if record["status"] == "ok"]

    @property
    def window_s(self) -> float:
        """Steady state: from the first start of a counted request to the last record."""
        if not (self.started_s and self.recorded_s):
            return 0.0
        return max(self.recorded_s.values()) - min(self.started_s.values())

    @property
    def latencies_s(self) -> list[float]:
        """Of each counted request: from its start to its record."""
        return [
            self.recorded_s[record["id"]] - self.started_s[record["id"]]
            for record in self.ok
            if record["id"] in self.started_s
        ]


def percentile(values: Sequence[float], percent: float) -> float:
    """By linear interpolation between the two nearest values, as numpy does by default."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def figures_of(traces: Sequence[Trace]) -> Figures:
    """The figures of a point: medians over its launches, percentiles over all their requests."""
    rates = [len(trace.ok) / trace.window_s for trace in traces if trace.window_s > 0]
    latencies = [latency for trace in traces for latency in trace.latencies_s]
    found: Figures = {
        "num_launches": len(traces),
        "num_ok": sum(len(trace.ok) for trace in traces),
        "num_failed": sum(len(trace.records) - len(trace.ok) for trace in traces),
        "window_s": _round(median(trace.window_s for trace in traces)),
        "startup_s": _round(median(_startup_s(trace) for trace in traces)),
        "connect_s": _round(median(trace.connected_s - trace.begin_s for trace in traces)),
        "load_s": _round(median(max(trace.load_s.values(), default=0.0) for trace in traces)),
        "overhead_per_request_s": overhead_per_request_s(
            times for trace in traces for times in trace.ranks.values()
        ),
        "ranks": _ranks(traces),
    }
    if not rates or not latencies:
        return found
    rate = median(rates)
    records = traces[0].ok
    frames = fmean(record["num_frames"] for record in records)
    pixels = fmean(r["num_frames"] * r["height"] * r["width"] for r in records)
    return found | {
        "requests_per_s": _round(rate),
        "requests_per_s_min": _round(min(rates)),
        "requests_per_s_max": _round(max(rates)),
        "outputs_per_min": _round(rate * 60),
        "frames_per_s": _round(rate * frames),
        "megapixels_per_s": _round(rate * pixels / 1e6),
        "device_s_per_output": _round(traces[0].layout.world_size / rate),
        "latency_mean_s": _round(fmean(latencies)),
        **{f"latency_p{p}_s": _round(percentile(latencies, p)) for p in PERCENTILES},
        "stage_s": _stages([record for trace in traces for record in trace.ok]),
    }


def efficiency(
    rate: float, world_size: int, first_rate: float, first_world_size: int
) -> float | None:
    """Throughput per device relative to the first point: 1 is linear scaling."""
    if first_rate <= 0:
        return None
    return _round(rate / world_size / (first_rate / first_world_size))


def _startup_s(trace: Trace) -> float:
    return max(trace.ready_s.values(), default=trace.begin_s) - trace.begin_s


def _stages(records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Mean seconds per stage of the micro-batch that a request was in."""
    values: dict[str, list[float]] = {}
    for record in records:
        for stage, seconds in record["stage_s"].items():
            values.setdefault(stage, []).append(seconds)
    return {stage: _round(fmean(seconds)) for stage, seconds in values.items()}


def _ranks(traces: Sequence[Trace]) -> list[Figures]:
    """Per rank: shares of the time in which it had something in flight, means over launches."""
    found = []
    for rank in sorted({rank for trace in traces for rank in trace.ranks}):
        told = [trace.ranks[rank] for trace in traces if rank in trace.ranks]
        shares = {
            name: _round(fmean(_share(times[f"{kind}_s"], times["active_s"]) for times in told))
            for name, kind in (("busy_share", "busy"), ("bubble", "waiting"))
        }
        replica = traces[0].layout.replica_of(rank)
        occupied = [occupied_share(t, replica) for t in traces if t.window_s > 0]
        found.append(
            {
                "rank": rank,
                "replica": replica,
                "device": next((t.devices[rank] for t in traces if rank in t.devices), None),
                **shares,
                "overhead_per_request_s": overhead_per_request_s(told),
                "occupied_share": _round(fmean(occupied)) if occupied else None,
                "peak_memory_bytes": max(int(times["peak_memory_bytes"]) for times in told),
                "load_s": _round(fmean(t.load_s[rank] for t in traces if rank in t.load_s)),
            }
        )
    return found


def occupied_share(trace: Trace, replica: int) -> float:
    """The share of the steady state in which `replica` had a counted request in flight."""
    spans = sorted(
        (trace.started_s[record["id"]], trace.recorded_s[record["id"]])
        for record in trace.records
        if record["replica"] == replica and record["id"] in trace.started_s
    )
    covered_s, end_s = 0.0, 0.0
    for begin_s, stop_s in spans:
        covered_s += max(0.0, stop_s - max(begin_s, end_s))
        end_s = max(end_s, stop_s)
    return _share(covered_s, trace.window_s)


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0


def _round(value: float) -> float:
    """Five digits are more than a measurement holds."""
    return float(f"{value:.5g}")
