"""Traffic: the wires of one rank, and the order in which all its lanes use them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from diffbatch.parallel.groups import Groups
from diffbatch.parallel.structure import Spec
from diffbatch.parallel.wire import Inbox, Notes, Outbox, Waiting

if TYPE_CHECKING:
    from diffbatch.parallel.lane import Lane


class Traffic:
    """This rank's wires to the other ranks of its replica, shared by all lanes.

    A lane belongs to one micro-batch. Lanes take their steps in rounds, in one order on every rank;
    receives are posted in the order in which the peer sends, as far ahead as structures are known.
    """

    def __init__(self, groups: Groups, store: Any, timeout_s: float) -> None:
        layout, rank, device = groups.layout, groups.rank, groups.device
        place, chain = layout.coordinates(rank), layout.group_of(rank, "pp")
        self.groups = groups
        self.pp, self.pp_rank = layout.pp, place["pp"]
        self.cfg, self.cfg_rank = layout.cfg, place["cfg"]
        self.is_first, self.is_last = self.pp_rank == 0, self.pp_rank == self.pp - 1
        self.waiting = Waiting()
        # Each chain of pipeline ranks has notes of its own: ranks of one tensor or sequence group
        # do the same and would write the same keys.
        self.notes = Notes(store, f"chain/{'-'.join(map(str, chain))}", self.waiting, timeout_s)
        beside = {**place, "pp": 0, "cfg": 0}
        self.shared_notes = Notes(store, f"beside/{layout.rank(beside)}", self.waiting, timeout_s)
        self.outputs: dict[str, Spec] = {}  # what a transformer returns, by signature of the call
        self._arriving: deque[Lane] = deque()  # whose receives of this round are not posted
        self._returning: deque[Lane] = deque()  # whose next feedback receive is not posted
        self._make_wires(chain, device)

    def _make_wires(self, chain: Sequence[int], device: torch.device) -> None:
        groups, waiting = self.groups, self.waiting
        self.inbox = self.outbox = self.feedback_inbox = self.feedback_outbox = None
        if not self.is_first:
            self.inbox = Inbox(groups.forward_in, chain[self.pp_rank - 1], device, waiting)
        if not self.is_last:
            self.outbox = Outbox(groups.forward_out, chain[self.pp_rank + 1], waiting)
        if self.pp > 1 and self.is_first:
            self.feedback_inbox = Inbox(groups.feedback, chain[-1], device, waiting)
        if self.pp > 1 and self.is_last:
            self.feedback_outbox = Outbox(groups.feedback, chain[0], waiting)

    def begin_round(self, lanes: Sequence[Lane]) -> None:
        """Every lane is about to take one step, in this order: post what can be posted ahead."""
        if not self.is_first:
            self._arriving.extend(lanes)
            self._post_arrivals()

    def stepped(self, lane: Lane, *, returns: bool) -> None:
        """`lane` has taken its step: receives that had to wait for it can be posted.

        `returns`: the last rank sends latents for its next step.
        """
        if self._arriving and self._arriving[0] is lane:
            self._arriving.popleft()
            self._post_arrivals()
        if self.feedback_inbox is not None and returns:
            self._returning.append(lane)
            self.post_returns(None)

    def post_returns(self, until: Lane | None) -> None:
        """Post feedback receives in the order in which the last rank sends.

        Without `until`: those whose structure is known. With it: wait for the structures of all up
        to that lane.
        """
        while self._returning and self._returning[0].post_return(wait=until is not None):
            if self._returning.popleft() is until:
                return

    def all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        """`own` of every guidance rank, in order. The last rank of each chain must call it."""
        parts = [torch.empty_like(own) for _ in range(self.cfg)]
        with self.waiting.count("the predictions of the other guidance ranks"):
            dist.all_gather(parts, own, group=self.groups.guidance)
        return parts

    def flush(self) -> None:
        """Wait until every send is out."""
        for outbox in (self.outbox, self.feedback_outbox):
            if outbox is not None:
                outbox.flush()

    def _post_arrivals(self) -> None:
        while self._arriving and self._arriving[0].post_arrivals():
            self._arriving.popleft()
