"""Lane: what one micro-batch in flight exchanges with the other ranks of its replica.

Per step and guidance branch the block outputs go from each pipeline rank to the next; the last
rank's new latents go back to the first; with CFG parallelism the predictions are gathered. Shapes
are known after a micro-batch's first step, so from then on nothing but tensors is on the wire. A
rank that fails goes on with stand-ins until the micro-batch is dropped, so that no peer waits.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from diffbatch.parallel.cut import CutModel
from diffbatch.parallel.groups import Groups
from diffbatch.parallel.structure import (
    Handoff,
    Header,
    Spec,
    TensorSpec,
    blank,
    flatten,
    plain_spec,
    spec_of,
    tensor_specs,
    unplain_spec,
)
from diffbatch.parallel.wire import Inbox, Notes, Outbox, PeerFailedError, Waiting

_FAILED = "failed"
BUFFERED_SLOTS = 64


class Traffic:
    """This rank's wires, shared by all lanes, which use them in one fixed order."""

    def __init__(self, groups: Groups, store: Any, timeout_s: float) -> None:
        layout, rank = groups.layout, groups.rank
        place = layout.coordinates(rank)
        chain = layout.group_of(rank, "pp")
        self.pp, self.pp_rank = layout.pp, place["pp"]
        self.cfg, self.cfg_rank = layout.cfg, place["cfg"]
        self.is_first = self.pp_rank == 0
        self.is_last = self.pp_rank == self.pp - 1
        self.groups = groups
        self.waiting = Waiting()
        # Ranks of one tensor or sequence group do the same: each has a chain of its own.
        chain_name = "-".join(str(member) for member in chain)
        self.notes = Notes(store, f"chain/{chain_name}", self.waiting, timeout_s)
        replica = place["replicas"]
        self.replica_notes = Notes(store, f"replica/{replica}", self.waiting, timeout_s)
        device = groups.device
        if not self.is_first:
            self.inbox = Inbox(groups.forward, chain[self.pp_rank - 1], device, self.waiting)
        if not self.is_last:
            self.outbox = Outbox(groups.forward, chain[self.pp_rank + 1], self.waiting)
        if self.pp > 1 and self.is_first:
            self.feedback_inbox = Inbox(groups.feedback, chain[-1], device, self.waiting)
        if self.pp > 1 and self.is_last:
            self.feedback_outbox = Outbox(groups.feedback, chain[0], self.waiting)
        self.outputs: dict[str, Spec] = {}  # what the model returns, by signature of the call
        self._arriving: deque[Lane] = deque()  # lanes whose receives of this round are not posted
        self._returning: deque[Lane] = deque()  # lanes whose feedback receive is not posted

    def begin_round(self, lanes: Sequence[Lane]) -> None:
        """Every lane is about to take one step, in this order: post what can be posted ahead."""
        if not self.is_first:
            self._arriving.extend(lanes)
            self.post_arrivals()

    def post_arrivals(self) -> None:
        """Post receives of the lanes in turn, up to one whose structures are not known yet."""
        while self._arriving and self._arriving[0].headers:
            self._arriving.popleft().post_arrivals()

    def end_of_first_step(self, lane: Lane) -> None:
        """`lane` has taken its first step: what comes after it can be posted now."""
        if self._arriving and self._arriving[0] is lane:
            self._arriving.popleft()
            self.post_arrivals()

    def await_feedback(self, lane: Lane) -> None:
        """Post feedback receives in the order in which the last rank sends, up to `lane`'s."""
        self._returning.append(lane)
        self.post_returns(None)

    def post_returns(self, until: Lane | None) -> None:
        """Post what is known; with `until`, wait for the structures of all up to that lane."""
        while self._returning and self._returning[0].post_return(wait=until is not None):
            if self._returning.popleft() is until:
                return

    def flush(self) -> None:
        """Wait until every send is out."""
        for name in ("outbox", "feedback_outbox"):
            if hasattr(self, name):
                getattr(self, name).flush()


@dataclass(slots=True)
class _Call:
    """One transformer call of the step in hand, on this rank."""

    taken: bool = False
    sent: bool = False


@dataclass(slots=True)
class Lane:
    """The exchanges of micro-batch `key`. Methods are called in the same order on every rank."""

    traffic: Traffic
    key: str
    step: int = 0
    headers: dict[int, Header] = field(default_factory=dict)  # of what arrives, by call
    sent_headers: dict[int, Header] = field(default_factory=dict)
    output_specs: dict[int, Spec] = field(default_factory=dict)
    feedback_specs: tuple[TensorSpec, ...] | None = None
    gather_like: torch.Tensor | None = None  # shape and dtype of one branch's slot
    num_slots: int = 0
    calls: list[_Call] = field(default_factory=list)
    gathered: bool = False
    returned: bool = False
    broken: bool = False  # the first step failed: nothing more is exchanged

    # -- one step -----------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Before the step's first transformer call."""
        self.calls, self.gathered, self.returned = [], False, False

    def forward(self, model: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """One transformer call: the model's output on the last rank, a stand-in elsewhere."""
        traffic = self.traffic
        call = len(self.calls)
        state = _Call()
        self.calls.append(state)
        if call % traffic.cfg != traffic.cfg_rank:
            state.taken = state.sent = True
            return self._stand_in(call, args, kwargs)
        if not isinstance(model, CutModel):  # pp 1
            output = model(*args, **kwargs)
            self._publish_output(call, output, args, kwargs)
            return output
        incoming = None if traffic.is_first else self._take(call, state)
        outcome = model.run(*args, incoming=incoming, **kwargs)
        if traffic.is_last:
            self._publish_output(call, outcome, args, kwargs)
            return outcome
        self._send(call, state, outcome)
        return self._stand_in(call, args, kwargs)

    def gather(self, predictions: list[torch.Tensor]) -> list[torch.Tensor]:
        """The true predictions of all branches, on the last rank of every guidance chain.

        `predictions` holds stand-ins of the right shape for branches of other ranks.
        """
        traffic = self.traffic
        self.gathered = True
        if traffic.cfg == 1 or not traffic.is_last:
            return predictions
        if self.step == 0:
            self.gather_like = predictions[0]
            self.num_slots = -(-len(predictions) // traffic.cfg)
            self._agree_to_gather(ok=True)
        own = predictions[traffic.cfg_rank :: traffic.cfg]
        slots = [*own, *[torch.zeros_like(predictions[0])] * (self.num_slots - len(own))]
        gathered = self._all_gather(torch.stack([slot.contiguous() for slot in slots]))
        return [
            gathered[branch % traffic.cfg][branch // traffic.cfg]
            for branch in range(len(predictions))
        ]

    def end_step(self, latents: Sequence[torch.Tensor]) -> None:
        """After the scheduler: the last rank returns `latents`, the first expects them."""
        traffic = self.traffic
        if traffic.pp > 1 and traffic.is_last:
            self._return(latents)
        if traffic.pp > 1 and traffic.is_first:
            traffic.await_feedback(self)
        self.returned = True
        if self.step == 0:
            traffic.end_of_first_step(self)
        self.step += 1

    def feedback(self) -> tuple[torch.Tensor, ...]:
        """On the first rank, before a step that is not the first: the new latents."""
        inbox = self.traffic.feedback_inbox
        if not inbox.expects(self._feedback_key):
            self.traffic.post_returns(self)
        if self.broken:
            raise PeerFailedError("the last pipeline rank failed")
        return inbox.take(self._feedback_key)

    # -- failure ------------------------------------------------------------------------------

    def fail_step(self) -> None:
        """This rank raised in the step: complete its exchanges with stand-ins."""
        if self.step == 0:
            self._fail_first_step()
            return
        for call, state in enumerate(self._all_calls()):
            if not state.taken and not self.traffic.is_first:
                self.traffic.inbox.take(self._arrival_key(call))
            if not state.sent and not self.traffic.is_last:
                self.traffic.outbox.send(_zeros(self.sent_headers[call].tensors, self), self.key)
        if self.gather_like is not None and not self.gathered and self.traffic.cfg > 1:
            self._all_gather(torch.stack([torch.zeros_like(self.gather_like)] * self.num_slots))
        if not self.returned:
            latents = _zeros(self.feedback_specs or (), self)
            self.end_step(latents)

    def drain(self) -> None:
        """The micro-batch is dropped: take what is still on its way to this rank."""
        traffic = self.traffic
        if traffic.pp > 1 and traffic.is_first and self.step > 0 and not self.broken:
            if not traffic.feedback_inbox.expects(self._feedback_key):
                traffic.post_returns(self)
            if traffic.feedback_inbox.expects(self._feedback_key):
                traffic.feedback_inbox.take(self._feedback_key)
        self.close()

    def close(self) -> None:
        """Give back the buffers."""
        if not self.traffic.is_first:
            for call in self.headers:
                self.traffic.inbox.forget(f"{self.key}/{call}")
        if self.traffic.pp > 1 and self.traffic.is_first:
            self.traffic.feedback_inbox.forget(self.key)

    # -- receiving ----------------------------------------------------------------------------

    def post_arrivals(self) -> None:
        """Post the receives of the coming step; its structures are known."""
        for call, header in sorted(self.headers.items()):
            slot = f"{self.key}/{call}"
            self.traffic.inbox.expect(self._arrival_key(call), header.tensors, slot)

    def post_return(self, *, wait: bool) -> bool:
        """Post the feedback receive if its structure is known (or can be waited for)."""
        if self.feedback_specs is None:
            notes = self.traffic.notes
            if not wait and not notes.ready(f"{self.key}/feedback"):
                return False
            note = notes.read(f"{self.key}/feedback", erase=True)
            if note == _FAILED:
                self.broken = True
                return True
            self.feedback_specs = tuple(_tensor_spec(spec) for spec in note)
        if not self.broken:
            inbox = self.traffic.feedback_inbox
            inbox.expect(self._feedback_key, self.feedback_specs, self.key)
        return True

    def _take(self, call: int, state: _Call) -> Handoff:
        inbox, key = self.traffic.inbox, self._arrival_key(call)
        if call not in self.headers:
            note = self.traffic.notes.read(self._header_key(call, -1), erase=True)
            if note == _FAILED:
                raise PeerFailedError("the pipeline rank before this one failed")
            self.headers[call] = Header.from_json(note)
            inbox.expect(key, self.headers[call].tensors, f"{self.key}/{call}")
        tensors = inbox.take(key)
        state.taken = True
        return Handoff(self.headers[call], tensors)

    # -- sending ------------------------------------------------------------------------------

    def _send(self, call: int, state: _Call, handoff: Handoff) -> None:
        if call not in self.sent_headers:
            self.traffic.notes.write(self._header_key(call, 0), handoff.header.to_json())
        self.sent_headers[call] = handoff.header
        self.traffic.outbox.send(handoff.tensors, self.key)
        state.sent = True

    def _return(self, latents: Sequence[torch.Tensor]) -> None:
        pairs = [flatten(tensor) for tensor in latents]
        if self.feedback_specs is None:
            self.feedback_specs = tuple(_as_tensor_spec(spec) for spec, _ in pairs)
            plain = [plain_spec(spec) for spec in self.feedback_specs]
            self.traffic.notes.write(f"{self.key}/feedback", plain)
        tensors = [tensor for _, parts in pairs for tensor in parts]
        self.traffic.feedback_outbox.send(tensors, self.key)

    def _fail_first_step(self) -> None:
        traffic, notes = self.traffic, self.traffic.notes
        self.broken = True
        call = sum(state.sent for state in self.calls)
        if not traffic.is_last and (not self.calls or not self.calls[-1].sent):
            notes.write(self._header_key(call, 0), _FAILED)
        if traffic.is_last:
            self._publish_failure()
            if traffic.cfg > 1 and not self.gathered:
                self._agree_to_gather(ok=False)
        if traffic.pp > 1 and traffic.is_last and not self.returned:
            notes.write(f"{self.key}/feedback", _FAILED)
        traffic.end_of_first_step(self)

    # -- guidance -----------------------------------------------------------------------------

    def _agree_to_gather(self, *, ok: bool) -> None:
        """Only a first step can find a peer without shapes: say so before the collective."""
        traffic = self.traffic
        place = traffic.cfg_rank
        traffic.replica_notes.write(f"{self.key}/gather/{place}", ok)
        others = [rank for rank in range(traffic.cfg) if rank != place]
        answers = [traffic.replica_notes.read(f"{self.key}/gather/{rank}") for rank in others]
        if ok and not all(answers):
            raise PeerFailedError("another guidance branch failed")

    def _all_gather(self, own: torch.Tensor) -> list[torch.Tensor]:
        self.gathered = True
        parts = [torch.empty_like(own) for _ in range(self.traffic.cfg)]
        with self.traffic.waiting.count("predictions of the other branches"):
            dist.all_gather(parts, own, group=self.traffic.groups.guidance)
        return parts

    # -- stand-ins ----------------------------------------------------------------------------

    def _publish_output(self, call: int, output: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Tell the ranks that do not compute this output what it looks like, once per signature."""
        if call in self.output_specs:
            return
        signature = _signature(call, args, kwargs)
        if signature not in self.traffic.outputs and self.traffic.groups.layout.group_size > 1:
            self.traffic.outputs[signature] = spec_of(output)
            note = plain_spec(self.traffic.outputs[signature])
            self.traffic.replica_notes.write(f"{self.key}/output/{call}", note)
        self.output_specs[call] = spec_of(output)

    def _publish_failure(self) -> None:
        call = len(self.calls) - 1
        if call >= 0 and call not in self.output_specs:
            self.traffic.replica_notes.write(f"{self.key}/output/{call}", _FAILED)

    def _stand_in(self, call: int, args: Any, kwargs: dict[str, Any]) -> Any:
        spec = self.output_specs.get(call)
        if spec is None:
            signature = _signature(call, args, kwargs)
            spec = self.traffic.outputs.get(signature)
            if spec is None:
                note = self.traffic.replica_notes.read(f"{self.key}/output/{call}")
                if note == _FAILED:
                    raise PeerFailedError("the rank that computes this branch failed")
                spec = self.traffic.outputs[signature] = unplain_spec(note)
            self.output_specs[call] = spec
        return blank(spec, self.traffic.groups.device, 0.0)
