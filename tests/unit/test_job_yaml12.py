from __future__ import annotations

import time
from typing import Any

import pytest

from diffbatch.errors import JobError
from diffbatch.job import yaml12


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("16:9", "16:9"),
        ("12:30:45", "12:30:45"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("<<", "<<"),
        ("=", "="),
        ("'42'", "42"),
        ("!!str 42", "42"),
        ("042", 42),
        ("0o17", 15),
        ("0x1F", 31),
        ("-3", -3),
        ("1e-4", 1e-4),
        ("1e0", 1.0),
        (".5", 0.5),
        ("4.", 4.0),
        ("-.inf", float("-inf")),
        ("True", True),
        ("false", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("{red|blue}", {"red|blue": None}),
    ],
)
def test_scalars_follow_yaml_1_2(typed: str, value: Any) -> None:
    [found] = yaml12.loads(f"- {typed}", "f.yaml").value
    assert found == value
    assert type(found) is type(value)


def test_positions_and_typed_text_are_kept() -> None:
    document = yaml12.loads("a: 1\nb:\n  - x\n  - {c: 042}\n", "f.yaml")
    assert document.lines["b", 1, "c"] == 4
    assert document.lines["b", 0] == 3
    assert document.typed["b", 1, "c"] == "042"


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2", "f.yaml:2: the key 'a' is already on line 1; keep one"),
        ("a: {b: 1, b: 2}", "f.yaml:1: a: the key 'b' is already on line 1; keep one"),
        ("1: x", "f.yaml:1: the key '1' is not text; quote it"),
        ("true: x", "f.yaml:1: the key 'true' is not text; quote it"),
        ("? [a, b]\n: x", "f.yaml:1: the key a list or mapping is not text; quote it"),
        ("a: !!python/object/apply:os.getcwd []", "is not allowed here; leave it out"),
        ("a: !color red", "f.yaml:1: a: the tag '!color' is not allowed here; leave it out"),
        ("a: !!int x", "f.yaml:1: a: 'x' is not a valid int"),
        ("a: " + "9" * 5000, "is not a valid int"),
        ("a: [b", "f.yaml:2: not valid YAML: while parsing a flow sequence from line 1 on"),
        ("a:\n  b: c: d", "f.yaml:2: not valid YAML: mapping values are not allowed"),
        ("--- 1\n--- 2", "expected a single document"),
        ("a: \x07", "not valid YAML: unacceptable character"),
        (BOMB, "aliases expand to more than 10000 values; write it out"),
        ("a: &a [*a]", "nested more than 50 deep"),
        ("[" * 60 + "]" * 60, "nested more than 50 deep"),
        ("[" * 100_000, "not valid YAML"),
    ],
)
def test_bad_yaml_is_one_error_with_its_line(text: str, message: str) -> None:
    start_s = time.perf_counter()
    with pytest.raises(JobError) as caught:
        yaml12.loads(text, "f.yaml")
    assert message in str(caught.value)
    assert time.perf_counter() - start_s < 5


def test_all_doubled_keys_are_reported_together() -> None:
    with pytest.raises(JobError) as caught:
        yaml12.loads("a: 1\na: 2\nb: 1\nb: 2", "f.yaml")
    assert [problem.place for problem in caught.value.problems] == ["f.yaml:2", "f.yaml:4"]


def test_a_lost_end_is_told_from_a_comment() -> None:
    document = yaml12.loads("- the number #1 fan\n- a cat  # a note\n- 'a #b'\n- x#y\n", "f.yaml")
    assert document.comments == {(0,): "#1 fan"}
    assert document.value == ["the number", "a cat", "a #b", "x#y"]
