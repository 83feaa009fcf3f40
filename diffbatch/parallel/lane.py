"""Lane: what one micro-batch in flight exchanges with the other ranks of its replica.

Per step and guidance branch, block outputs go from each pipeline rank to the next; the last rank's
new latents go back to the first; with CFG parallelism the predictions are gathered. Structures are
told once, ahead of the first step; after that nothing but tensors is on the wire. A rank that fails
completes its exchanges with stand-ins until the micro-batch is dropped, so that no peer waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from diffbatch.parallel.branches import BranchGather
from diffbatch.parallel.cut import CutModel
from diffbatch.parallel.outputs import OutputSpecs
from diffbatch.parallel.structure import (
    Handoff,
    Header,
    Spec,
    TensorSpec,
    flatten,
    plain_spec,
    spec_from_plain,
    unflatten,
)
from diffbatch.parallel.traffic import Traffic
from diffbatch.parallel.wire import PeerFailedError

_FAILED = "failed"
_UPSTREAM = "an earlier pipeline rank could not go on with this micro-batch"
_DOWNSTREAM = "a later pipeline rank could not go on with this micro-batch"


@dataclass(slots=True)
class _Step:
    """Which exchanges of the step in hand are done. Sets hold indices of transformer calls."""

    number: int = 0
    final: bool = False  # nothing starts from its latents: no feedback
    num_called: int = 0
    taken: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)
    has_latents: bool = False  # first rank: the feedback of the step before is taken
    returned: bool = False


class Lane:
    """The exchanges of micro-batch `key`; its methods are called in one order on every rank.

    `num_calls` is the number of transformer calls per step: one per guidance branch. A step is
    `begin_step`, `feedback`, `forward` for each call, `gather`, `end_step`; after an exception
    anywhere in between, and in every later round, `complete_step` does what is left of it.
    """

    def __init__(self, traffic: Traffic, key: str, num_calls: int) -> None:
        self._traffic = traffic
        self._key = key
        self._calls = range(traffic.cfg_rank, num_calls, traffic.cfg)  # those of this chain
        self._num_calls = num_calls
        self._step = _Step()
        self._arriving: dict[int, Header] = {}  # by call
        self._leaving: dict[int, Header] = {}
        self._outputs = OutputSpecs(traffic, key)
        self._branches = BranchGather(traffic, key, num_calls)
        self._latents: tuple[TensorSpec, ...] | None = None  # what feedback carries
        # A direction is dead when a rank failed before the structures were told.
        self._in_dead = self._out_dead = self._feedback_dead = False

    # -- one step -----------------------------------------------------------------------------

    def begin_step(self, *, final: bool) -> None:
        """Before anything of a step. `final`: the loop's last one."""
        self._step = _Step(number=self._step.number, final=final)
        self._branches.begin_step()

    def feedback(self) -> tuple[torch.Tensor, ...] | None:
        """The new latents, on the first of several ranks, from the second step on; else None."""
        inbox = self._traffic.feedback_inbox
        self._step.has_latents = True
        if inbox is None or self._step.number == 0:
            return None
        tensors = self._take_return()
        if tensors is None:
            raise PeerFailedError(_DOWNSTREAM)
        return tensors

    def forward(self, model: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The next transformer call: its output where this rank computes it, else a stand-in."""
        traffic, step = self._traffic, self._step
        call, step.num_called = step.num_called, step.num_called + 1
        if call >= self._num_calls:
            raise RuntimeError(f"a step called its transformer more than {self._num_calls} times")
        if call not in self._calls:
            return self._outputs.stand_in(call, args, kwargs)
        if not isinstance(model, CutModel):
            output = model(*args, **kwargs)
        else:
            incoming = None if traffic.is_first else self._take(call)
            output = model.run(*args, incoming=incoming, **kwargs)
        if not traffic.is_last:
            self._send(call, output)
            return self._outputs.stand_in(call, args, kwargs)
        self._outputs.publish(call, output, args, kwargs)
        return output

    def gather(self, predictions: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The true predictions of all branches, on the last rank of every guidance chain.

        `predictions`, one per call, holds stand-ins of the right shape for those of other chains.
        """
        traffic = self._traffic
        if traffic.cfg == 1 or not traffic.is_last:
            return list(predictions)
        return self._branches.gather(predictions, first=self._step.number == 0)

    def end_step(self, latents: Sequence[torch.Tensor]) -> None:
        """After the scheduler. `latents` is what the next step starts from; the last rank sends."""
        for call in self._calls:
            # A branch that guidance left out of this step: its peers have posted for it.
            if call >= self._step.num_called and call in {**self._arriving, **self._leaving}:
                self._exchange_stand_in(call)
        if self._traffic.feedback_outbox is not None and not self._step.final:
            self._return(latents)
        self._finish_step()

    # -- failure ------------------------------------------------------------------------------

    def complete_step(self) -> None:
        """This rank gave the micro-batch up: do the step's remaining exchanges with stand-ins."""
        traffic, step = self._traffic, self._step
        if traffic.feedback_inbox is not None and step.number > 0 and not step.has_latents:
            self._take_return()
        for call in self._calls:
            self._exchange_stand_in(call)
        if traffic.is_last:
            if step.number == 0:
                self._outputs.fail(self._calls)
            if traffic.cfg > 1:
                self._branches.stand_in(first=step.number == 0)
        if traffic.feedback_outbox is not None and not (step.returned or step.final):
            self._return_stand_in()
        self._finish_step()

    def drain(self) -> None:
        """The micro-batch is dropped between two rounds: take what is on its way to this rank."""
        if self._traffic.feedback_inbox is not None and self._step.number > 0:
            self._take_return()
        self._forget_buffers()

    def close(self) -> None:
        """After the final step: give back buffers and erase notes that everyone has read."""
        traffic = self._traffic
        self._forget_buffers()
        if traffic.is_last and traffic.cfg > 1:
            self._branches.close()

    def _forget_buffers(self) -> None:
        traffic = self._traffic
        for call in self._arriving:
            assert traffic.inbox is not None
            traffic.inbox.forget(f"{self._key}/{call}")
        if traffic.feedback_inbox is not None:
            traffic.feedback_inbox.forget(self._key)

    # -- posting ahead, for Traffic -----------------------------------------------------------

    def post_arrivals(self) -> bool:
        """Post the receives of the coming step; False while their structures are not known."""
        if self._in_dead:
            return True
        if set(self._calls) - self._arriving.keys():
            return False
        for call in self._calls:
            self._expect(call, self._step.number)
        return True

    def post_return(self, *, wait: bool) -> bool:
        """Post the receive of the feedback; False while its structure is not known."""
        inbox, notes = self._traffic.feedback_inbox, self._traffic.notes
        assert inbox is not None
        if self._latents is None and not self._feedback_dead:
            note_key = f"{self._key}/feedback"
            if not wait and not notes.ready(note_key):
                return False
            note = notes.read(note_key, erase=True)
            if note == _FAILED:
                self._feedback_dead = True
            else:
                self._latents = tuple(_tensor(spec_from_plain(plain)) for plain in note)
        if self._latents is not None:
            inbox.expect(self._return_key, self._latents, self._key)
        return True

    # -- forward ------------------------------------------------------------------------------

    def _expect(self, call: int, step: int) -> None:
        inbox = self._traffic.inbox
        assert inbox is not None
        slot = f"{self._key}/{call}"
        inbox.expect(f"{slot}/{step}", self._arriving[call].tensors, slot)

    def _take(self, call: int) -> Handoff:
        inbox, step = self._traffic.inbox, self._step
        assert inbox is not None
        key = f"{self._key}/{call}/{step.number}"
        if not self._in_dead and call not in self._arriving:
            sender = self._traffic.pp_rank - 1
            note = self._traffic.notes.read(f"{self._key}/header/{call}/{sender}", erase=True)
            if note == _FAILED:
                self._in_dead = True
            else:
                self._arriving[call] = Header.from_json(note)
        if self._in_dead:
            raise PeerFailedError(_UPSTREAM)
        if not inbox.expects(key):
            self._expect(call, step.number)
        step.taken.add(call)
        return Handoff(self._arriving[call], inbox.take(key))

    def _exchange_stand_in(self, call: int) -> None:
        """What is left of the exchanges of `call`, without computing anything."""
        traffic, step = self._traffic, self._step
        if traffic.inbox is not None and call not in step.taken:
            step.taken.add(call)
            with suppress(PeerFailedError):
                self._take(call)
        if traffic.outbox is not None and call not in step.sent:
            self._send_stand_in(call)

    def _send(self, call: int, handoff: Handoff) -> None:
        assert self._traffic.outbox is not None
        if call not in self._leaving:
            self._leaving[call] = handoff.header
            self._traffic.notes.write(self._header_key(call), handoff.header.to_json())
        elif handoff.header.tensors != self._leaving[call].tensors:
            raise PeerFailedError("a block's output changed its shape from one step to the next")
        self._traffic.outbox.send(handoff.tensors, self._key)
        self._step.sent.add(call)

    def _send_stand_in(self, call: int) -> None:
        assert self._traffic.outbox is not None
        if call in self._leaving:
            device = self._traffic.groups.device
            specs = self._leaving[call].tensors
            self._traffic.outbox.send([_zeros(spec, device) for spec in specs], self._key)
        elif not self._out_dead:
            self._out_dead = True
            for unsent in self._calls:
                if unsent not in self._leaving:
                    self._traffic.notes.write(self._header_key(unsent), _FAILED)
        self._step.sent.add(call)

    def _header_key(self, call: int) -> str:
        return f"{self._key}/header/{call}/{self._traffic.pp_rank}"

    # -- feedback -----------------------------------------------------------------------------

    @property
    def _return_key(self) -> str:
        return f"{self._key}/return/{self._step.number}"

    def _take_return(self) -> tuple[torch.Tensor, ...] | None:
        """The latents that the last rank sent after the step before; None if it gave up."""
        inbox = self._traffic.feedback_inbox
        assert inbox is not None
        self._step.has_latents = True
        if not (self._feedback_dead or inbox.expects(self._return_key)):
            self._traffic.post_returns(self)
        if self._feedback_dead:
            return None
        wire = zip(self._latents or (), inbox.take(self._return_key), strict=True)
        return tuple(unflatten(spec, [tensor]) for spec, tensor in wire)

    def _return(self, latents: Sequence[torch.Tensor]) -> None:
        outbox = self._traffic.feedback_outbox
        assert outbox is not None
        flat = [flatten(tensor) for tensor in latents]
        if self._latents is None:
            self._latents = tuple(_tensor(spec) for spec, _ in flat)
            note = [plain_spec(spec) for spec in self._latents]
            self._traffic.notes.write(f"{self._key}/feedback", note)
        outbox.send([tensor for _, tensors in flat for tensor in tensors], self._key)
        self._step.returned = True

    def _return_stand_in(self) -> None:
        outbox = self._traffic.feedback_outbox
        assert outbox is not None
        if self._latents is not None:
            device = self._traffic.groups.device
            outbox.send([_zeros(spec, device) for spec in self._latents], self._key)
        elif not self._feedback_dead:
            self._feedback_dead = True
            self._traffic.notes.write(f"{self._key}/feedback", _FAILED)
        self._step.returned = True

    def _finish_step(self) -> None:
        self._step.number += 1
        self._traffic.stepped(self, returns=not self._step.final)


def _tensor(spec: Spec) -> TensorSpec:
    assert isinstance(spec, TensorSpec)
    return spec


def _zeros(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    return torch.zeros(spec.wire_shape, dtype=spec.torch_dtype, device=device)
