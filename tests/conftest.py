"""Fixtures for every kind of test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.distributed.spawn import RankPool
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], Path]:
    """`tiny("wan")` is the folder of a tiny checkpoint; never write into it."""
    return tiny_checkpoint


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[Callable[[int], RankPool]]:
    """`rank_pool(2).run(fn, *args)`: one set of processes per world size for all tests."""
    with ExitStack() as stack:
        yield cache(lambda world_size: stack.enter_context(RankPool(world_size)))
