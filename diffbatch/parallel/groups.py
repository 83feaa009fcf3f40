"""Process groups of one rank: made once, at start-up, in the same order on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from diffbatch.plan.layout import AXES, Axis, Layout

_INSIDE = tuple(axis for axis in AXES if axis != "replicas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The communicators of one rank. None where the group has one member.

    Every kind of traffic has its own, also where the members are the same: on NCCL, operations on
    one communicator match in the order in which they were issued, so two kinds that interleave
    differently on two ranks would wait for each other for ever. Forward and feedback are the case
    that always does: rank 0 sends forward before it receives feedback, the last rank the reverse.
    For the same reason each pair of neighbours has its own: a receive that is posted ahead must not
    hold up the send to the other side.
    """

    layout: Layout
    rank: int
    device: torch.device
    forward_in: Any  # block outputs from the pipeline rank before
    forward_out: Any  # block outputs to the next pipeline rank
    feedback: Any  # new latents, last pipeline rank to the first
    ring: Any  # keys and values of other parts of the sequence
    ulysses: Any  # heads for tokens and back
    sequence: Any  # both of these: parts of the sequence to the whole
    tensor: Any  # sums over slices of a layer
    guidance: Any  # predictions of the guidance branches
    replica: Any  # encodings and votes: collectives of the whole replica
    finals: Any  # finished latents, to the rank that decodes them


def make_groups(layout: Layout, rank: int, device: torch.device, timeout_s: float) -> Groups:
    """Make every group of the layout and return those of `rank`. Every rank must call it.

    `timeout_s` bounds every wait for a peer.
    """

    timeout = timedelta(seconds=timeout_s)

    def make(*axes: Axis) -> Any:
        return _make(rank, layout.groups(*axes), timeout)

    links = [(pair, dist.new_group(list(pair), timeout=timeout)) for pair in layout.links()]
    forward_in = next((group for (_, to), group in links if to == rank), None)
    forward_out = next((group for (sender, _), group in links if sender == rank), None)
    feedback = _make(rank, layout.returns(), timeout)
    return Groups(
        layout=layout,
        rank=rank,
        device=device,
        forward_in=forward_in,
        forward_out=forward_out,
        feedback=feedback,
        ring=make("ring"),
        ulysses=make("ulysses"),
        sequence=make("ring", "ulysses"),
        tensor=make("tp"),
        guidance=make("cfg"),
        replica=make(*_INSIDE),
        finals=make(*_INSIDE),
    )


def start_process_group(
    store: Any, rank: int, world_size: int, device: torch.device, timeout_s: float
) -> None:
    """Start torch.distributed: NCCL for a GPU, gloo for the CPU. Every rank must call it.

    `timeout_s` bounds every wait for a peer.
    """
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if on_gpu else None,
    )


def _make(rank: int, groups: Sequence[tuple[int, ...]], timeout: timedelta) -> Any:
    mine = None
    for members in groups:
        if len(members) == 1:
            continue
        group = dist.new_group(list(members), timeout=timeout)
        if rank in members:
            mine = group
    return mine
