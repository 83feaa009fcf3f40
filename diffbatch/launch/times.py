"""Where the ranks' time went, from what each told at its end: for run.json and `bench`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Times = Mapping[str, Any]  # of one rank: its "rank" event


def stage_facts(ranks: Mapping[int, Times]) -> dict[str, Any]:
    """Seconds per stage, over all ranks and of each."""
    by_rank = {rank: dict(times.get("stage_s", {})) for rank, times in sorted(ranks.items())}
    total: dict[str, float] = {}
    for seconds in by_rank.values():
        for stage, value in seconds.items():
            total[stage] = total.get(stage, 0.0) + value
    return {
        "total": {stage: round(value, 4) for stage, value in total.items()},
        "by_rank": {str(rank): seconds for rank, seconds in by_rank.items()},
    }


def overhead_facts(ranks: Mapping[int, Times]) -> dict[str, Any]:
    """The overhead per request, over all ranks and of each, with what it was reckoned from."""
    told = {rank: times for rank, times in sorted(ranks.items()) if "overhead_s" in times}
    names = ("active_s", "waiting_s", "overhead_s", "num_requests")
    return {
        "per_request_s": overhead_per_request_s(told.values()),
        "by_rank": {
            str(rank): {
                **{name: times[name] for name in names},
                "per_request_s": overhead_per_request_s([times]),
            }
            for rank, times in told.items()
        },
    }


def overhead_per_request_s(ranks: Iterable[Times]) -> float | None:
    """Overhead of these ranks over the requests they worked on; None when there were none."""
    told = [times for times in ranks if "overhead_s" in times]
    num = sum(times["num_requests"] for times in told)
    return round(sum(times["overhead_s"] for times in told) / num, 6) if num else None
