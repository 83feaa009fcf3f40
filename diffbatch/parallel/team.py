"""Team: what the ranks of one replica do together outside of the denoise loop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from diffbatch.parallel.groups import Groups
from diffbatch.parallel.structure import (
    TensorSpec,
    Value,
    flatten,
    plain_spec,
    spec_from_plain,
    spec_of,
    tensors_of,
    unflatten,
)
from diffbatch.parallel.traffic import Traffic
from diffbatch.parallel.wire import Notes, Outbox

_FAILED = "failed"


class Team:
    """The ranks of this replica. A team of one does everything itself and sends nothing."""

    def __init__(self, groups: Groups, store: Any, timeout_s: float) -> None:
        layout, rank = groups.layout, groups.rank
        replica = layout.replica_of(rank)
        self.groups = groups
        self.ranks = layout.replica_ranks(replica)
        self.size = len(self.ranks)
        self.place = self.ranks.index(rank)
        self.traffic = Traffic(groups, store, timeout_s)
        self.notes = Notes(store, f"team/{replica}", self.traffic.waiting, timeout_s)
        self._finals: dict[int, Outbox] = {}  # by place

    @property
    def has_lanes(self) -> bool:
        """Whether micro-batches exchange anything per step."""
        return self.traffic.pp > 1 or self.traffic.cfg > 1

    @property
    def final_place(self) -> int:
        """The place of the rank that has a micro-batch's final latents and sends them."""
        layout = self.groups.layout
        chain = layout.group_of(self.ranks[0], "pp")
        return self.ranks.index(chain[-1])

    def any_failed(self, failed: Sequence[bool]) -> list[bool]:
        """For each entry, whether it is true on any rank. All ranks of the team must call it."""
        if self.size == 1 or not failed:
            return list(failed)
        votes = torch.tensor(failed, dtype=torch.int32, device=self.groups.device)
        with self.traffic.waiting.count("the vote of the other ranks"):
            dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.groups.replica)
            return [bool(vote) for vote in votes.tolist()]

    def share(self, value: Value | None, place: int) -> Value | None:
        """`value` of the rank at `place`, on every rank; None there means failure, and spreads.

        Its structure goes ahead as JSON. All ranks of the team must call it.
        """
        if self.size == 1:
            return value
        mine = place == self.place
        spec, tensors = flatten(value) if mine and value is not None else (None, ())
        text = self._share_text(json.dumps(plain_spec(spec)) if spec else "null", place)
        plain = json.loads(text)
        if plain is None:
            return None
        spec = spec_from_plain(plain)
        device = self.groups.device
        buffers = tensors if mine else [part.empty(device) for part in tensors_of(spec)]
        with self.traffic.waiting.count("a broadcast"):
            for buffer in buffers:
                dist.broadcast(buffer, src=self.ranks[place], group=self.groups.replica)
        return value if mine else unflatten(spec, buffers)

    def send_final(self, key: str, tensors: Sequence[torch.Tensor] | None, place: int) -> None:
        """Hand the final latents of micro-batch `key` to the rank at `place`. None: they failed."""
        self.notes.write(f"{key}/final", _FAILED if tensors is None else "sent")
        if place not in self._finals:
            peer, waiting = self.ranks[place], self.traffic.waiting
            self._finals[place] = Outbox(self.groups.finals, peer, waiting)
        for tensor in tensors or ():
            self._finals[place].send(flatten(tensor)[1], key)

    def take_final(self, key: str, like: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """The final latents of `key`, shaped as `like`; None when the ranks before gave up."""
        if self.notes.read(f"{key}/final", erase=True) == _FAILED:
            return None
        found = []
        with self.traffic.waiting.count("final latents"):
            for tensor in like:
                spec = spec_of(tensor)
                assert isinstance(spec, TensorSpec)
                buffer = spec.empty(self.groups.device)
                dist.recv(buffer, self.ranks[self.final_place], self.groups.finals)
                found.append(unflatten(spec, [buffer]))
        return found

    def flush(self) -> None:
        """Wait until every send of this rank is out."""
        self.traffic.flush()
        for outbox in self._finals.values():
            outbox.flush()

    def _share_text(self, text: str, place: int) -> str:
        device, src, group = self.groups.device, self.ranks[place], self.groups.replica
        data = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).to(device)
        size = torch.tensor([data.numel()], device=device)
        with self.traffic.waiting.count("a broadcast"):
            dist.broadcast(size, src=src, group=group)
            if place != self.place:
                data = torch.empty(int(size.item()), dtype=torch.uint8, device=device)
            dist.broadcast(data, src=src, group=group)
        return bytes(data.cpu().numpy().tobytes()).decode()
