"""From events to figures: rates, percentiles, shares, efficiency."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diffbatch.bench.measure import Trace, efficiency, figures_of, occupied_share, percentile
from diffbatch.plan.layout import Layout


def record(req_id: str, *, replica: int = 0, status: str = "ok", **more: Any) -> dict[str, Any]:
    size = {"height": 100, "width": 50, "num_frames": 2, "index": 0}
    return {
        "id": req_id,
        "status": status,
        "replica": replica,
        "error": None if status == "ok" else "no",
        "stage_s": {"denoising": 1.5, "save": 0.5},
        **size,
        **more,
    }


def trace_of(events: list[dict[str, Any]], counted: str, replicas: int = 1) -> Trace:
    trace = Trace(layout=Layout(replicas=replicas), begin_s=100.0, counted=frozenset(counted))
    for event in events:
        trace.note(event, now_s=999.0)
    return trace


def two_replicas(slow: float = 1.0) -> Trace:
    """Four requests on two replicas in 4 s (times `slow`), after a warm-up that nobody counts."""

    def at(seconds: float) -> float:
        return 120.0 + seconds * slow

    def started(replica: int, req_id: str, seconds: float) -> dict[str, Any]:
        return {"event": "started", "replica": replica, "ids": [req_id], "time_s": at(seconds)}

    def recorded(replica: int, req_id: str, seconds: float) -> dict[str, Any]:
        made = record(req_id, replica=replica)
        return {"event": "record", "replica": replica, "record": made, "time_s": at(seconds)}

    ready = {"event": "ready", "load": {}, "device": "cpu"}
    times = {"busy_s": 6.0, "waiting_s": 2.0, "active_s": 10.0, "wall_s": 50.0}
    spent = [{"overhead_s": 0.5, "num_requests": 4}, {"overhead_s": 0.1, "num_requests": 1}]
    return trace_of(
        [
            {"event": "connected", "time_s": 103.0},
            {**ready, "rank": 0, "replica": 0, "load_s": 4.0, "time_s": 109.0},
            {**ready, "rank": 1, "replica": 1, "load_s": 5.0, "time_s": 110.0},
            started(0, "warm", -6),
            recorded(0, "warm", -5),
            started(0, "a", 0),
            started(1, "b", 0),
            recorded(0, "a", 1),
            started(0, "c", 1),
            recorded(0, "c", 2),
            recorded(1, "b", 2),
            started(0, "d", 3),
            recorded(0, "d", 4),
            {"event": "rank", "rank": 0, "replica": 0, **times, **spent[0], "peak_memory_bytes": 7},
            {"event": "rank", "rank": 1, "replica": 1, **times, **spent[1], "peak_memory_bytes": 9},
            {"event": "left", "replica": 0},
        ],
        "abcd",
        replicas=2,
    )


def test_the_rate_counts_from_the_first_start_to_the_last_record() -> None:
    figures = figures_of([two_replicas()])
    assert figures["num_ok"] == 4
    assert figures["window_s"] == 4.0
    assert figures["requests_per_s"] == 1.0
    assert figures["outputs_per_min"] == 60.0
    assert figures["frames_per_s"] == 2.0
    assert figures["megapixels_per_s"] == 0.01
    assert figures["device_s_per_output"] == 2.0
    assert figures["latency_mean_s"] == 1.25
    assert figures["latency_p50_s"] == 1.0
    assert figures["stage_s"] == {"denoising": 1.5, "save": 0.5}


def test_start_and_load_times_are_those_of_the_slowest_rank() -> None:
    figures = figures_of([two_replicas()])
    assert (figures["startup_s"], figures["connect_s"], figures["load_s"]) == (10.0, 3.0, 5.0)


def test_shares_and_memory_per_rank() -> None:
    first, second = figures_of([two_replicas()])["ranks"]
    assert (first["busy_share"], first["bubble"], first["peak_memory_bytes"]) == (0.6, 0.2, 7)
    assert first["occupied_share"] == 0.75
    assert (second["occupied_share"], second["peak_memory_bytes"]) == (0.5, 9)


def test_the_overhead_of_a_request_is_a_mean_over_requests() -> None:
    figures = figures_of([two_replicas(), two_replicas()])
    assert figures["overhead_per_request_s"] == 0.12
    assert [rank["overhead_per_request_s"] for rank in figures["ranks"]] == [0.125, 0.1]


def test_several_launches_give_medians_and_keep_the_extremes() -> None:
    figures = figures_of([two_replicas(), two_replicas(2.0), two_replicas(4.0)])
    assert figures["num_launches"] == 3
    assert figures["requests_per_s"] == 0.5
    assert (figures["requests_per_s_min"], figures["requests_per_s_max"]) == (0.25, 1.0)
    assert figures["num_ok"] == 12


def test_failed_requests_are_counted_but_not_as_throughput() -> None:
    trace = trace_of(
        [
            {"event": "started", "ids": ["a", "b"], "time_s": 1.0},
            {"event": "record", "record": record("a"), "time_s": 3.0},
            {"event": "record", "record": record("b", status="failed"), "time_s": 5.0},
        ],
        "ab",
    )
    figures = figures_of([trace])
    assert (figures["num_ok"], figures["num_failed"]) == (1, 1)
    assert figures["requests_per_s"] == 0.25
    assert figures["latency_p99_s"] == 2.0


def test_a_launch_that_made_nothing_has_no_rate() -> None:
    figures = figures_of([trace_of([], "a")])
    assert "requests_per_s" not in figures
    assert figures["num_ok"] == 0


def test_an_event_without_a_time_has_that_of_its_arrival() -> None:
    assert trace_of([{"event": "connected"}], "a").connected_s == 999.0


def test_overlapping_requests_occupy_a_replica_once() -> None:
    trace = trace_of(
        [
            {"event": "started", "ids": ["a", "b"], "time_s": 0.0},
            {"event": "record", "record": record("a"), "time_s": 2.0},
            {"event": "record", "record": record("b"), "time_s": 3.0},
            {"event": "started", "ids": ["c"], "time_s": 5.0},
            {"event": "record", "record": record("c"), "time_s": 6.0},
        ],
        "abc",
    )
    assert occupied_share(trace, 0) == pytest.approx(4 / 6)
    assert occupied_share(trace, 1) == 0.0


@pytest.mark.parametrize("percent", [0, 1, 50, 95, 99, 100])
@pytest.mark.parametrize("num", [1, 2, 5, 100])
def test_percentiles_are_those_of_numpy(percent: float, num: int) -> None:
    values = np.random.default_rng(num).random(num).tolist()
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_efficiency_is_throughput_per_device_against_the_first_point() -> None:
    assert efficiency(1.0, 1, 1.0, 1) == 1.0
    assert efficiency(1.5, 2, 1.0, 1) == 0.75
    assert efficiency(1.0, 1, 1.5, 2) == pytest.approx(1.3333, abs=1e-4)
    assert efficiency(1.0, 1, 0.0, 1) is None
