"""Micro-batches and their cost depend on the job alone."""

from __future__ import annotations

import pytest

from diffbatch.plan.batches import (
    batch_size_of,
    cost,
    forward_key,
    micro_batches,
    num_branches,
    num_tokens,
    work_queue,
)
from diffbatch.req import Req, SamplingParams
from tests.unit.model_kit import picture_facts, wan_facts
from tests.unit.output_helpers import make_req

FACTS = wan_facts()


def reqs_of(*sizes: int, **params: object) -> list[Req]:
    """One Req per size, which is its height."""
    return [make_req(i, f"p{i}", height=size, **params) for i, size in enumerate(sizes)]


def composition(reqs: list[Req], batch_size: int) -> list[list[int]]:
    return [[req.index for req in batch] for batch, _ in micro_batches(reqs, batch_size, FACTS)]


@pytest.mark.parametrize(
    ("sizes", "batch_size", "expected"),
    [
        ((), 2, []),
        ((64,), 2, [[0]]),
        ((64, 64, 64), 1, [[0], [1], [2]]),
        ((64, 64, 64), 2, [[0, 1], [2]]),
        ((64, 32, 64, 32, 64), 2, [[0, 2], [1, 3], [4]]),
        ((64, 32, 64, 32), 4, [[0, 2], [1, 3]]),
    ],
)
def test_only_equal_shapes_share_a_micro_batch_in_job_order(
    sizes: tuple[int, ...], batch_size: int, expected: list[list[int]]
) -> None:
    assert composition(reqs_of(*sizes), batch_size) == expected


@pytest.mark.parametrize(
    ("side", "frames", "expected"),
    [(64, 1, 16), (256, 1, 16), (512, 1, 4), (1024, 1, 1), (64, 81, 12), (512, 81, 1)],
)
def test_auto_fills_a_forward_by_tokens(side: int, frames: int, expected: int) -> None:
    req = make_req(0, "p", height=side, width=side, num_frames=frames)
    assert batch_size_of(req.params, "auto", FACTS) == expected
    assert batch_size_of(req.params, 3, FACTS) == 3


def test_auto_decides_for_each_shape_by_itself() -> None:
    sizes = [64] * 17 + [1024] * 2
    found = [
        len(batch)
        for batch, _ in micro_batches(
            [make_req(i, f"p{i}", height=s, width=s) for i, s in enumerate(sizes)], "auto", FACTS
        )
    ]
    assert sorted(found) == [1, 1, 1, 16]


@pytest.mark.parametrize("batch_size", range(1, 7))
def test_every_request_is_in_exactly_one_micro_batch(batch_size: int) -> None:
    reqs = reqs_of(*([64, 32, 64, 48, 32] * 5))
    found = composition(reqs, batch_size)
    assert sorted(index for batch in found for index in batch) == list(range(25))
    assert max(map(len, found)) <= batch_size


@pytest.mark.parametrize(
    ("change", "shares"),
    [
        ({"negative_prompt": "blurry"}, True),
        ({"image": "/a.png", "image_sha256": "00"}, True),
        ({"fps": 8}, True),
        ({"height": 32}, False),
        ({"width": 32}, False),
        ({"num_frames": 5}, False),
        ({"num_inference_steps": 9}, False),
        ({"guidance_scale": 1.5}, False),
        ({"guidance_scale_2": 1.5}, False),
        ({"max_sequence_length": 64}, False),
    ],
)
def test_texts_and_playback_do_not_part_a_forward_and_all_else_does(
    change: dict[str, object], shares: bool
) -> None:
    base = SamplingParams(height=64, width=64, num_inference_steps=4, guidance_scale=4.0)
    changed = SamplingParams(**{**base.as_dict(), **change})
    assert (forward_key(base) == forward_key(changed)) is shares


def test_what_is_done_already_changes_no_composition() -> None:
    reqs = reqs_of(64, 64, 64, 64, 64)
    everything = {req.id for req in reqs}
    whole = work_queue(reqs, everything, batch_size=2, facts=FACTS)
    rest = work_queue(reqs, everything - {reqs[0].id, reqs[2].id}, batch_size=2, facts=FACTS)
    assert [batch.reqs for batch in rest] == [batch.reqs for batch in whole]
    assert [sorted(batch.write) for batch in rest] == [[r.id] for r in (reqs[1], reqs[3], reqs[4])]


def test_micro_batches_without_anything_to_do_are_left_out() -> None:
    reqs = reqs_of(64, 64, 64, 64)
    queue = work_queue(reqs, {reqs[3].id}, batch_size=2, facts=FACTS)
    assert [batch.reqs for batch in queue] == [(reqs[2], reqs[3])]
    assert work_queue(reqs, set(), batch_size=2, facts=FACTS) == []


def test_the_dearest_goes_first_and_equal_ones_keep_their_order() -> None:
    reqs = reqs_of(32, 128, 64, 128, 32)
    queue = work_queue(reqs, {req.id for req in reqs}, batch_size=1, facts=FACTS)
    assert [batch.reqs[0].index for batch in queue] == [1, 3, 2, 0, 4]
    assert [batch.cost for batch in queue] == sorted((b.cost for b in queue), reverse=True)


@pytest.mark.parametrize(
    ("params", "tokens", "branches", "whole"),
    [
        ({"height": 64, "width": 64}, 16, 1, 16),
        ({"height": 64, "width": 64, "num_inference_steps": 8}, 16, 1, 128),
        ({"height": 64, "width": 32, "num_frames": 5}, 16, 1, 16),
        ({"height": 64, "width": 64, "num_frames": 81}, 336, 1, 336),
        ({"height": 64, "width": 64, "guidance_scale": 1.0}, 16, 1, 16),
        ({"height": 64, "width": 64, "guidance_scale": 1.01}, 16, 2, 32),
        ({"height": 64, "width": 64, "guidance_scale": 0.0}, 16, 1, 16),
        ({}, 1, 1, 1),
    ],
)
def test_cost_is_branches_times_steps_times_tokens(
    params: dict[str, object], tokens: int, branches: int, whole: float
) -> None:
    given = SamplingParams(**params)
    assert num_tokens(given, FACTS) == tokens
    assert num_branches(given, FACTS) == branches
    assert cost(given, FACTS) == whole


def test_a_batch_costs_what_its_requests_cost() -> None:
    [(_, two)] = micro_batches(reqs_of(64, 64), 2, FACTS)
    [(_, one)] = micro_batches(reqs_of(64), 2, FACTS)
    assert two == 2 * one


def test_an_unguided_model_has_one_branch_at_any_scale() -> None:
    assert num_branches(SamplingParams(guidance_scale=7.0), picture_facts()) == 1
