"""The gather of guidance branches: one collective per step, after one agreement that it can be."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from diffbatch.parallel.traffic import Traffic
from diffbatch.parallel.wire import PeerFailedError


class BranchGather:
    """Brings the predictions of all guidance branches of one micro-batch to all cfg ranks.

    Branch b is computed by cfg rank `b mod cfg`. Used on the last rank of each pipeline chain.
    """

    def __init__(self, traffic: Traffic, key: str, num_branches: int) -> None:
        self._traffic = traffic
        self._key = key
        self._num_branches = num_branches
        self._own = range(traffic.cfg_rank, num_branches, traffic.cfg)
        self._slots: torch.Tensor | None = None  # this rank's part of the last gather
        self._done = False  # in the step in hand
        self._dead = False  # a rank gave up before the first one

    def begin_step(self) -> None:
        """A new step: its gather is still to come."""
        self._done = False

    def gather(self, predictions: Sequence[torch.Tensor], *, first: bool) -> list[torch.Tensor]:
        """True predictions for all of `predictions`, which holds stand-ins for other ranks' ones.

        `first`: in the micro-batch's first step. PeerFailedError if another rank gave it up there.
        """
        cfg = self._traffic.cfg
        own = [predictions[at].contiguous() for at in self._own if at < len(predictions)]
        num_slots = -(-self._num_branches // cfg)
        own += [torch.zeros_like(predictions[0])] * (num_slots - len(own))
        self._slots = torch.stack(own)
        if first and not self._agree(ok=True):
            raise PeerFailedError("the rank of another guidance branch gave up")
        self._done = True
        parts = self._traffic.all_gather(self._slots)
        return [parts[at % cfg][at // cfg] for at in range(len(predictions))]

    def stand_in(self, *, first: bool) -> None:
        """Take part in a step's gather without a prediction, so that no other rank waits."""
        if self._done or self._dead:
            return
        if first:
            self._agree(ok=False)
        else:
            assert self._slots is not None
            self._traffic.all_gather(torch.zeros_like(self._slots))

    def close(self) -> None:
        """After the last step: erase this rank's note, which every other rank has read."""
        if not self._dead:
            self._traffic.shared_notes.erase(self._note_of(self._traffic.cfg_rank))

    def _agree(self, *, ok: bool) -> bool:
        """Whether every rank has a prediction: one that failed has no shapes to take part with."""
        notes, place = self._traffic.shared_notes, self._traffic.cfg_rank
        notes.write(self._note_of(place), ok)
        others = [rank for rank in range(self._traffic.cfg) if rank != place]
        answers = [notes.read(self._note_of(rank)) for rank in others]
        self._dead = not (ok and all(answers))
        return not self._dead

    def _note_of(self, cfg_rank: int) -> str:
        return f"{self._key}/gather/{cfg_rank}"
