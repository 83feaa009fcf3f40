"""Stand-ins for what a transformer returns, on the ranks where it does not return it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from diffbatch.parallel.structure import Spec, blank, plain_spec, spec_from_plain, spec_of
from diffbatch.parallel.traffic import Traffic
from diffbatch.parallel.wire import PeerFailedError

_FAILED = "failed"


class OutputSpecs:
    """The structures of one micro-batch's transformer outputs, by call of a step.

    The rank that computes an output tells the others what it looks like, once per signature of the
    call and for all micro-batches; after that nothing is exchanged.
    """

    def __init__(self, traffic: Traffic, key: str) -> None:
        self._traffic = traffic
        self._key = key
        self._specs: dict[int, Spec] = {}

    def publish(self, call: int, output: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """On the rank that computed `output`: tell its structure if nobody knows it yet."""
        if call in self._specs:
            return
        self._specs[call] = spec_of(output)
        signature = _signature(call, args, kwargs)
        if signature not in self._traffic.outputs:
            self._traffic.outputs[signature] = self._specs[call]
            note = plain_spec(self._specs[call])
            self._traffic.shared_notes.write(f"output/{signature}", note)

    def fail(self, calls: range) -> None:
        """On a rank that computes `calls`, in a first step: those not told yet never will be."""
        for call in calls:
            if call not in self._specs:
                self._traffic.shared_notes.write(f"{self._key}/output/{call}", _FAILED)

    def stand_in(self, call: int, args: Any, kwargs: dict[str, Any]) -> Any:
        """Zeros of the output's structure. PeerFailedError when its rank gave up before telling."""
        if call not in self._specs:
            signature = _signature(call, args, kwargs)
            spec = self._traffic.outputs.get(signature)
            if spec is None:
                keys = (f"output/{signature}", f"{self._key}/output/{call}")
                _, note = self._traffic.shared_notes.read_first(keys)
                if note == _FAILED:
                    raise PeerFailedError("the rank that computes this output gave up")
                spec = self._traffic.outputs[signature] = spec_from_plain(note)
            self._specs[call] = spec
        return blank(self._specs[call], self._traffic.groups.device, 0.0)


def _signature(call: int, args: Any, kwargs: dict[str, Any]) -> str:
    """Equal for calls whose outputs have equal structure: the structures of all tensors given."""
    given = [*args, *(value for _, value in sorted(kwargs.items()))]
    tensors = [
        [list(value.shape), str(value.dtype)] for value in given if isinstance(value, torch.Tensor)
    ]
    text = json.dumps([call, sorted(kwargs), tensors])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
