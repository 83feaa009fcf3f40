"""Account: what the time of one rank went to. Told when it ends, for run.json and `bench`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from diffbatch.pipeline.clock import StageLedger


class Account:
    """Times of one rank, from now to `close`.

    `waiting_s` tells how long this rank has waited for others of its replica so far.
    """

    def __init__(self, ledger: StageLedger, waiting_s: Callable[[], float]) -> None:
        self._ledger = ledger
        self._waiting_s = waiting_s
        self._begin_s = time.perf_counter()
        self._busy_s = 0.0
        self._active_s = 0.0
        self._waited_s = 0.0  # of the active seconds
        self.num_requests = 0  # that this rank has worked on

    @contextmanager
    def active(self) -> Iterator[None]:
        """Around everything that is done while something is in flight."""
        begin_s, waited_s = time.perf_counter(), self._waiting_s()
        yield
        self._active_s += time.perf_counter() - begin_s
        self._waited_s += self._waiting_s() - waited_s

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Around what the executor does; waits in it do not count."""
        begin_s, waited_s = time.perf_counter(), self._waiting_s()
        yield
        self._busy_s += time.perf_counter() - begin_s - (self._waiting_s() - waited_s)

    def close(self, *, all_done: bool) -> dict[str, Any]:
        """The times, JSON-ready; see docs/run-folder.md for what each means.

        Without `all_done` the device may hang on a peer that is gone: it is not waited for.
        """
        self._ledger.close(wait=all_done)
        times = {
            "busy_s": self._busy_s,
            "waiting_s": self._waited_s,
            "active_s": self._active_s,
            "wall_s": time.perf_counter() - self._begin_s,
        }
        return {
            **{name: round(value, 3) for name, value in times.items()},
            "stage_s": {stage: round(s, 4) for stage, s in self._ledger.seconds.items()},
            "overhead_s": round(self._overhead_s(), 4),
            "num_requests": self.num_requests,
        }

    def _overhead_s(self) -> float:
        waited_s = self._waited_s - self._ledger.covered_waiting_s
        return max(self._active_s - waited_s - sum(self._ledger.seconds.values()), 0.0)
