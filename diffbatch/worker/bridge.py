"""Bridge: how the leader of a replica keeps its team in step, through torchrun's store.

One order per round goes from the leader to every rank: what to drop, what to admit, whether to end.
Reports go the other way: what failed, what is decoded, who is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from diffbatch.parallel.team import Team
from diffbatch.pipeline.flight import Failure
from diffbatch.req import MicroBatch, micro_batch_from_dict

_IDLE_S = 0.005  # between two looks for an order, while there is nothing to do
_KEPT_ORDERS = 8  # ranks of a team are never so many rounds apart
_REPORTS = "reports"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What every rank of a team does before its next turn, in this order."""

    drop: list[str] = field(default_factory=list)  # keys
    admit: list[tuple[str, MicroBatch]] = field(default_factory=list)
    end: bool = False  # nothing follows; what is still in flight is given up

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form; `order_from_dict` reads it back."""
        admit = [[key, batch.as_dict()] for key, batch in self.admit]
        return {"drop": self.drop, "admit": admit, "end": self.end}


def order_from_dict(data: dict[str, Any]) -> Order:
    """The inverse of `Order.as_dict`."""
    admit = [(key, micro_batch_from_dict(batch)) for key, batch in data["admit"]]
    return Order(drop=data["drop"], admit=admit, end=data["end"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a rank tells the leader. `kind` is "failed", "decoded" or "done"."""

    kind: str
    key: str = ""
    error: str = ""
    out_of_memory: bool = False


class Bridge:
    """Both directions, for one rank. Store traffic of a team of one stays inside the process."""

    def __init__(self, team: Team) -> None:
        self._notes = team.notes
        self._alone = team.size == 1
        self._number = 0
        self._own_reports: list[Report] = []

    def give(self, order: Order) -> None:
        """Leader: tell the team."""
        if not self._alone:
            self._notes.write(f"order/{self._number}", order.as_dict())
            if self._number >= _KEPT_ORDERS:
                self._notes.erase(f"order/{self._number - _KEPT_ORDERS}")
        self._number += 1

    def take(self, *, idle: bool, stopped: Callable[[], bool]) -> Order | None:
        """Other ranks: the leader's next order; None when `stopped`. Idle waits have no limit."""
        key = f"order/{self._number}"
        while idle and not self._notes.ready(key):
            if stopped():
                return None
            time.sleep(_IDLE_S)
        self._number += 1
        return order_from_dict(self._notes.read(key))

    def failed(self, failure: Failure) -> None:
        """Any rank: a micro-batch cannot be made."""
        self._tell(Report(kind="failed", **asdict(failure)))

    def decoded(self, key: str) -> None:
        """Any rank: a micro-batch is decoded here and on its way to disk."""
        self._tell(Report(kind="decoded", key=key))

    def done(self) -> None:
        """Any rank: everything of mine is on disk."""
        self._tell(Report(kind="done"))

    def reports(self) -> Iterator[Report]:
        """Leader: what the ranks have told since the last call."""
        if self._alone:
            told, self._own_reports = self._own_reports, []
            yield from told
        else:
            while (data := self._notes.pop(_REPORTS)) is not None:
                yield Report(**data)

    def _tell(self, report: Report) -> None:
        if self._alone:
            self._own_reports.append(report)
        else:
            self._notes.push(_REPORTS, asdict(report))
