"""The table on the terminal, bench.json and bench.csv."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from diffbatch.bench.result import PointResult, best_of
from diffbatch.launch.devices import num_cores
from diffbatch.output.atomic import write_atomic
from diffbatch.plan.layout import AXES
from diffbatch.terminal import printable

SCHEMA_VERSION = 1
_SCALARS = (
    *("num_launches", "num_ok", "num_failed", "window_s", "startup_s", "connect_s", "load_s"),
    *("requests_per_s", "requests_per_s_min", "requests_per_s_max", "outputs_per_min"),
    *("frames_per_s", "megapixels_per_s", "device_s_per_output"),
    *("latency_mean_s", "latency_p50_s", "latency_p95_s", "latency_p99_s"),
    "overhead_per_request_s",
)

_SHORT = {
    "text_encoding": "text",
    "image_encoding": "image",
    "denoising": "denoise",
    "decoding": "decode",
}


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "num_cores": num_cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """bench.json, whole or not at all; see docs/bench.md for its fields."""
    text = json.dumps({"schema_version": SCHEMA_VERSION, **data}, indent=2, ensure_ascii=False)
    write_atomic(path, [text.encode(), b"\n"])


def csv_text(results: Sequence[PointResult]) -> str:
    """One line per point. Columns are the same for every bench but for the stages."""
    stages = list(dict.fromkeys(s for r in results for s in r.figures.get("stage_s", {})))
    head = ["number", "label", "status", "reason", *AXES, "in_flight", "batch_size", "world_size"]
    means = ["busy_share_mean", "bubble_max", "peak_memory_bytes_max"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*head, *_SCALARS, "efficiency", *means, *(f"stage_{s}_s" for s in stages)])
    for result in results:
        measured = result.figures
        row: list[Any] = [result.number, result.label, result.status, result.reason]
        row += [(result.layout or result.settings).get(axis) for axis in AXES]
        row += [getattr(result, n) or None for n in ("in_flight", "batch_size", "world_size")]
        row += [measured.get(name) for name in _SCALARS]
        row += [result.efficiency, busy_mean(result), bubble_max(result), peak_max(result)]
        row += [measured.get("stage_s", {}).get(stage) for stage in stages]
        writer.writerow(row)
    return out.getvalue()


def tables(results: Sequence[PointResult]) -> list[Table]:
    """The measured points, one row each: what they give, and where the time goes."""
    measured = [result for result in results if result.rate is not None]
    if not measured:
        return []
    axes = list(dict.fromkeys(axis for result in measured for axis in result.settings))
    used = (s for r in measured for s, seconds in r.figures["stage_s"].items() if seconds > 1e-4)
    stages = list(dict.fromkeys(used))
    gives = {"outputs\n/min": "outputs_per_min", "MP\n/s": "megapixels_per_s"}
    if any(result.figures["frames_per_s"] != result.rate for result in measured):
        gives["frames\n/s"] = "frames_per_s"
    speeds = [*gives, "effi-\nciency", "dev. s\n/output", "p50\ns", "p95\ns", "p99\ns"]
    names = [f"{_SHORT.get(stage, stage)}\ns" for stage in stages]
    costs = [*names, "busy", "bubble", "peak\nMB", "load\ns", "start\ns"]
    first, second = _table([*axes, "ranks"], speeds), _table([*axes, "ranks"], costs)
    best = best_of(measured) if len(measured) > 1 else None
    for result in measured:
        style = "bold" if result is best else ""
        found, at = result.figures, [*map(str, result.settings.values()), str(result.world_size)]
        latencies = [f"{found[f'latency_p{p}_s']:.3g}" for p in (50, 95, 99)]
        rates = [f"{found[name]:.4g}" for name in gives.values()]
        per_device = [_percent(result.efficiency), f"{found['device_s_per_output']:.3g}"]
        first.add_row(*at, *rates, *per_device, *latencies, style=style)
        seconds = [f"{found['stage_s'].get(stage, 0):.2g}" for stage in stages]
        shares = [_percent(busy_mean(result)), _percent(bubble_max(result))]
        start = [f"{found['load_s']:.1f}", f"{found['startup_s']:.1f}"]
        peak = f"{(peak_max(result) or 0) / 1e6:.0f}"
        second.add_row(*at, *seconds, *shares, peak, *start, style=style)
    return [first, second]


def print_tables(results: Sequence[PointResult], console: Console) -> None:
    """In full also where they are wider than the terminal: no figure is cut."""
    for table in tables(results):
        needed = Measurement.get(console, console.options.update(max_width=1000), table).maximum
        console.width = max(console.width, needed)
        console.print(table, "")


def _table(axes: Sequence[str], columns: Sequence[str]) -> Table:
    made = Table(box=None, pad_edge=False)
    for title in (*axes, *columns):
        made.add_column(title, justify="right", no_wrap=True)
    return made


def remarks(results: Sequence[PointResult]) -> Iterator[str]:
    """What the table does not show: points without figures, failed requests, doubts."""
    for result in results:
        if result.status == "refused":
            yield f"{result.label}: cannot run: {result.reason}"
        elif result.status == "failed":
            yield f"{result.label}: failed: {result.reason}"
        elif result.status == "waiting":
            yield f"{result.label}: not measured"
        if failed := result.figures.get("num_failed"):
            yield f"{result.label}: {failed} requests failed; their errors are in the manifests"
        for note in result.notes:
            yield f"{result.label}: {note}"


def headings(facts: Mapping[str, Any]) -> tuple[str, str]:
    """Title and subtitle of the chart: what was made, and on what."""
    requests, on = facts["requests"], facts["machine"]
    params = requests["params"]
    size = f"{params['width']} x {params['height']}" if "width" in params else ""
    frames = params.get("num_frames") or 1
    parts = [
        f"{requests['num']} requests",
        size,
        f"{frames} frames" if frames > 1 else "",
        f"{params.get('num_inference_steps')} steps",
    ]
    title = f"{Path(facts['model']['name']).name}: {', '.join(part for part in parts if part)}"
    where = f"{on['num_gpus']} GPUs" if on["num_gpus"] else f"{on['num_cores']} cores"
    threads = f", {facts['threads']} thread per rank" if facts["threads"] else ""
    return title, f"{on['cpu']}, {where}{threads.replace('1 thread', 'one thread')}"


def one_line(result: PointResult) -> str:
    """A point in a line."""
    if result.rate is None or result.status == "failed":
        return f"{result.label}: failed: {result.reason}"
    found = result.figures
    text = f"{result.label}: {found['outputs_per_min']:.4g} outputs/min"
    text += f", {found['latency_p50_s']:.3g} s each"
    return f"{text}, efficiency {_percent(result.efficiency)}"


def busy_mean(result: PointResult) -> float | None:
    """Mean share of the steady state in which a rank computed."""
    ranks = [rank for rank in result.figures.get("ranks", ()) if rank["occupied_share"] is not None]
    if not ranks:
        return None
    return round(fmean(rank["busy_share"] * rank["occupied_share"] for rank in ranks), 4)


def bubble_max(result: PointResult) -> float | None:
    """The largest share of its time that a rank waited for others of its replica."""
    return max((rank["bubble"] for rank in result.figures.get("ranks", ())), default=None)


def peak_max(result: PointResult) -> int | None:
    """Memory of the rank that needed most."""
    ranks = result.figures.get("ranks", ())
    return max((rank["peak_memory_bytes"] for rank in ranks), default=None)


def shown(text: str) -> Text:
    """A line for the terminal."""
    return Text(printable(text))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.0f} %"


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
