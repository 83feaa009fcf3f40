"""What a lane hands to the denoise loop, without a peer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from diffbatch.parallel.lane import Lane
from diffbatch.parallel.structure import TensorSpec, flatten


@pytest.mark.parametrize("num_frames", [1, 3])
def test_latents_come_back_in_their_own_shape(num_frames: int) -> None:
    """On the wire dims go from slowest to fastest in memory, which need not be their order."""
    sent = torch.randn(1, num_frames, 8, 2, 2).transpose(1, 2)
    spec, wire = flatten(sent)
    assert isinstance(spec, TensorSpec)
    assert wire[0].shape != sent.shape
    inbox = SimpleNamespace(expects=lambda key: True, take=lambda key: wire)
    traffic: Any = SimpleNamespace(cfg=1, cfg_rank=0, feedback_inbox=inbox)
    lane = Lane(traffic, "k", 1)
    lane._latents = (spec,)
    lane.begin_step(final=False)
    lane._step.number = 1
    returned = lane.feedback()
    assert returned is not None
    assert torch.equal(returned[0], sent)
    assert returned[0].stride() == sent.stride()
