"""The helper that runs functions on several ranks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
import torch
from torch import distributed

from tests.distributed.spawn import RankError, RankPool, run_ranks

pytestmark = pytest.mark.distributed


@pytest.fixture
def pool(rank_pool: Callable[[int], RankPool]) -> RankPool:
    return rank_pool(2)


def test_results_come_in_rank_order(pool: RankPool) -> None:
    (first, first_sum), (second, second_sum) = pool.run(_sum_over_ranks, 10)
    assert (first, second) == (0, 1)
    assert torch.equal(first_sum, torch.full((3,), 21.0))
    assert torch.equal(second_sum, first_sum)


def test_processes_are_reused_with_one_thread_each(pool: RankPool) -> None:
    first = pool.run(_process_id_and_threads)
    assert pool.run(_process_id_and_threads) == first
    assert [threads for _, threads in first] == [1, 1]


def test_first_rank_that_raises_is_named_with_its_traceback(pool: RankPool) -> None:
    with pytest.raises(RankError, match=r"rank 1 raised ValueError: no such tile") as caught:
        pool.run(_raise_on_rank, 1)
    assert caught.value.rank == 1
    assert "in _raise_on_rank" in str(caught.value)
    assert pool.run(_sum_over_ranks, 0)[1][0] == 1, "the pool is rebuilt"


def test_rank_that_hangs_is_named_with_its_stack(pool: RankPool) -> None:
    pool.run(_process_id_and_threads)
    start = time.monotonic()
    with pytest.raises(RankError, match=r"rank 1 gave no result within 1 s") as caught:
        pool.run(_hang_on_rank, 1, timeout_s=1)
    assert time.monotonic() - start < 10
    assert "in _hang_on_rank" in str(caught.value)


def test_rank_that_dies_is_named() -> None:
    with pytest.raises(RankError, match=r"rank 0 died with exit code -9"):
        run_ranks(_die_on_rank, 2, 0)


def test_closed_pool_leaves_no_process() -> None:
    with RankPool(1) as pool:
        [(process_id, _)] = pool.run(_process_id_and_threads)
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)


def _sum_over_ranks(offset: int) -> tuple[int, torch.Tensor]:
    tensor = torch.full((3,), float(offset + distributed.get_rank()))
    distributed.all_reduce(tensor)
    return distributed.get_rank(), tensor


def _process_id_and_threads() -> tuple[int, int]:
    return os.getpid(), torch.get_num_threads()


def _raise_on_rank(rank: int) -> None:
    if distributed.get_rank() == rank:
        raise ValueError("no such tile")
    distributed.barrier()


def _hang_on_rank(rank: int) -> None:
    if distributed.get_rank() == rank:
        time.sleep(600)


def _die_on_rank(rank: int) -> None:
    if distributed.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.barrier()
