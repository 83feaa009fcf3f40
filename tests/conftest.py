"""Fixtures for every kind of test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], Path]:
    """`tiny("wan")` is the folder of a tiny checkpoint; never write into it."""
    return tiny_checkpoint
