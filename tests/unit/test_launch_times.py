"""Seconds per stage and overhead per request, from what the ranks told."""

from __future__ import annotations

from typing import Any

from diffbatch.launch.times import overhead_facts, overhead_per_request_s, stage_facts


def told(overhead_s: float, num_requests: int, **stage_s: float) -> dict[str, Any]:
    times = {"active_s": 5.0, "waiting_s": 1.0, "wall_s": 9.0}
    mine = {"overhead_s": overhead_s, "num_requests": num_requests, "stage_s": stage_s}
    return {"event": "rank", **times, **mine}


def test_stages_are_summed_over_ranks() -> None:
    ranks = {1: told(0, 1, denoising=2.5), 0: told(0, 1, denoising=1.5, decoding=0.25)}
    assert stage_facts(ranks) == {
        "total": {"denoising": 4.0, "decoding": 0.25},
        "by_rank": {"0": {"denoising": 1.5, "decoding": 0.25}, "1": {"denoising": 2.5}},
    }


def test_the_mean_overhead_is_over_requests_not_over_ranks() -> None:
    facts = overhead_facts({0: told(0.75, 3), 1: told(0.25, 1), 2: told(0.0, 0)})
    assert facts["per_request_s"] == 0.25
    assert facts["by_rank"]["0"] == {
        "active_s": 5.0,
        "waiting_s": 1.0,
        "overhead_s": 0.75,
        "num_requests": 3,
        "per_request_s": 0.25,
    }
    assert facts["by_rank"]["2"]["per_request_s"] is None


def test_ranks_that_died_have_told_nothing() -> None:
    assert overhead_per_request_s([]) is None
    assert overhead_facts({0: {"wall_s": 1.0}}) == {"per_request_s": None, "by_rank": {}}
    assert stage_facts({}) == {"total": {}, "by_rank": {}}
