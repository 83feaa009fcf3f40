"""Block outputs as plain data: headers as JSON, tensors as contiguous buffers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from diffbatch.errors import PlanError
from diffbatch.parallel.structure import Handoff, Header, blank, flatten, spec_of, unflatten

BASE = torch.arange(24.0).view(2, 3, 4)
VALUES: dict[str, Any] = {
    "a tensor": BASE,
    "a permuted tensor": BASE.permute(2, 0, 1),
    "a slice": BASE[:, 1:, ::2],
    "an expanded tensor": torch.ones(1, 1, 3).expand(2, 4, 3),
    "bfloat16": BASE.to(torch.bfloat16),
    "whole numbers and a mask": (torch.arange(3), torch.tensor([True, False])),
    "a scalar": torch.tensor(2.5),
    "no elements": torch.zeros(2, 0, 3),
    "None": None,
    "a tuple with None": (None, BASE),
    "nested": {"x": [BASE, (1, 2.5, "text", None, True)], "y": {"z": BASE[0]}},
    "an empty tuple": (),
}


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, tuple | list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


@pytest.mark.parametrize("name", VALUES)
def test_a_value_survives_the_wire(name: str) -> None:
    value = VALUES[name]
    spec, tensors = flatten(value)
    header = Header.from_json(Header((spec,)).to_json())
    assert header == Header((spec,))
    assert [tuple(t.shape) for t in tensors] == [part.wire_shape for part in header.tensors]
    assert all(tensor.is_contiguous() for tensor in tensors)
    buffers = [part.empty("cpu").copy_(t) for part, t in zip(header.tensors, tensors, strict=True)]
    assert_same(Handoff(header, tuple(buffers)).value(), value)


def test_the_order_of_dims_in_memory_survives() -> None:
    value = BASE.permute(2, 0, 1)
    spec, tensors = flatten(value)
    assert tensors[0].data_ptr() == value.data_ptr()  # dense: nothing is copied
    assert unflatten(spec, tensors).stride() == value.stride()


def test_equal_neighbours_are_written_once() -> None:
    one, other = spec_of((BASE, None)), spec_of(BASE)
    header = Header((one,) * 40 + (other,) * 2)
    assert len(json.loads(header.to_json())) == 2
    assert Header.from_json(header.to_json()) == header
    assert len({header, Header.from_json(header.to_json())}) == 1


def test_blanks_have_the_structure_and_no_memory() -> None:
    value = blank(spec_of((BASE, torch.arange(3), None)), "cpu", float("nan"))
    assert value[0].shape == BASE.shape
    assert value[0].isnan().all()
    assert value[0].untyped_storage().nbytes() == 4
    assert value[1].tolist() == [0, 0, 0]
    assert value[2] is None


def test_types_that_cannot_travel_are_refused() -> None:
    @dataclass
    class Output:
        x: torch.Tensor

    with pytest.raises(PlanError, match="a block returned a Output; only tensors"):
        flatten((BASE, Output(BASE)))
