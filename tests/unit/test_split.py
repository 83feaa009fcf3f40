"""Blocks per pipeline rank."""

from __future__ import annotations

import pytest

from diffbatch.errors import PlanError
from diffbatch.plan.split import PipelineShare, parse_partition, partition_from_env, split_blocks


def counts(num_blocks: int, pp: int) -> list[int]:
    return [len(own) for own in split_blocks(num_blocks, pp)]


@pytest.mark.parametrize(
    ("num_blocks", "pp", "expected"),
    [
        (40, 1, [40]),
        (40, 4, [10, 10, 10, 10]),
        (30, 4, [7, 8, 8, 7]),
        (31, 4, [8, 8, 8, 7]),
        (5, 2, [3, 2]),
        (7, 3, [2, 3, 2]),
        (8, 3, [3, 3, 2]),
        (3, 3, [1, 1, 1]),
        (57, 8, [7, 7, 7, 8, 7, 7, 7, 7]),
    ],
)
def test_even_with_the_remainder_in_the_middle(num_blocks: int, pp: int, expected: list) -> None:
    assert counts(num_blocks, pp) == expected


def test_ranges_cover_all_blocks_in_order() -> None:
    for num_blocks in range(1, 65):
        for pp in range(1, num_blocks + 1):
            split = split_blocks(num_blocks, pp)
            assert [at for own in split for at in own] == list(range(num_blocks))
            sizes = [len(own) for own in split]
            assert max(sizes) - min(sizes) <= 1
            share = PipelineShare(pp=pp, rank=pp - 1)
            assert share.own(num_blocks) == split[-1]


def test_a_partition_overrides() -> None:
    assert split_blocks(40, 4, (8, 12, 12, 8)) == (
        range(8),
        range(8, 20),
        range(20, 32),
        range(32, 40),
    )


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ((20, 20), "partition 20,20 has 2 counts for pp 4; give 4 counts, such as 10,10,10,10"),
        ((10, 10, 10, 9), "sums to 39, the model has 40 blocks; .* add up to 40"),
        ((20, 20, 0, 0), "leaves a rank without blocks"),
    ],
)
def test_partitions_that_do_not_fit(partition: tuple[int, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        split_blocks(40, 4, partition)


def test_more_ranks_than_blocks_is_refused_with_the_nearest_legal_value() -> None:
    with pytest.raises(
        PlanError, match="pp 5 needs at least 5 blocks, the model has 4; use --pp 4"
    ):
        split_blocks(4, 5)
    with pytest.raises(PlanError, match="pp is 0"):
        split_blocks(4, 0)


def test_partitions_as_text() -> None:
    assert parse_partition("8, 12,12,8") == (8, 12, 12, 8)
    assert partition_from_env({"DIFFBATCH_PP_PARTITION": "3,1"}) == (3, 1)
    assert partition_from_env({"DIFFBATCH_PP_PARTITION": " "}) is None
    assert partition_from_env({}) is None


@pytest.mark.parametrize("text", ["", "8,,8", "8,-1", "8,x", "0,8", "8.5", "\u0663"])
def test_text_that_is_no_partition(text: str) -> None:
    with pytest.raises(PlanError, match=r"--pp-partition: .* is not a partition"):
        parse_partition(text)
