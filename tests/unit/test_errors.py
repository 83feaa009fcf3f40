"""How an exception that is not ours is told to the user."""

from __future__ import annotations

import pytest

from diffbatch.errors import _short_path, describe


def test_an_error_is_told_with_its_text() -> None:
    assert describe(ValueError("no such size")) == "ValueError: no such size"
    assert describe(KeyError()) == "KeyError"


def test_an_error_without_a_text_names_the_line_that_raised_it() -> None:
    with pytest.raises(AssertionError) as caught:
        _check(3)
    told = describe(caught.value)
    assert told.startswith("AssertionError at tests/unit/test_errors.py:")
    assert told.endswith(": raise AssertionError")


def test_a_library_is_named_from_its_package_on() -> None:
    path = "/venv/lib/python3.11/site-packages/diffusers/models/x.py"
    assert _short_path(path) == "diffusers/models/x.py"


def _check(value: int) -> None:
    if value > 2:
        raise AssertionError
