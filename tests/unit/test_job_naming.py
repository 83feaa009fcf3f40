from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffbatch.job.naming import NameTemplate, NameTemplateError, slugify


def render(template: str, prompt: str, suffix: str = ".png", **columns: Any) -> str:
    values = {
        "index": 7,
        "seed": 3,
        "prompt_index": 5,
        "output_index": 2,
        "id": "abc123",
        "prompt": prompt,
        "slug": slugify(prompt),
        **columns,
    }
    return NameTemplate(template).render(values, suffix)


@pytest.mark.parametrize(
    ("template", "prompt", "name"),
    [
        ("{index:05d}-{slug}-{seed}", "A red circle!", "00007-a-red-circle-3.png"),
        ("{prompt:.4}", "a dog", "a do.png"),
        ("pictures/{id}", "x", "pictures/abc123.png"),
        ("{prompt}", "../../x", "___.._x.png"),
        ("{prompt}", "a/b", "a_b.png"),
        ("{prompt}", 'say "hi": **now**', "say _hi__ __now__.png"),
        ("{prompt}", "line1\nline2", "line1 line2.png"),
        ("{prompt}", ".", "_.png"),
        ("{prompt}", "..", "__.png"),
        ("{prompt}", "NUL", "_NUL.png"),
        ("{prompt}", "con.txt", "_con.txt.png"),
        ("{prompt}", "nullify", "nullify.png"),
        ("{prompt}", "-rf", "_rf.png"),
        ("{prompt}", "ends in a dot.", "ends in a dot_.png"),
        ("{prompt}", "ends in a blank ", "ends in a blank_.png"),
        ("{prompt}", "a\x00b\x1b[31m", "a_b_[31m.png"),
        ("{prompt}", "abc\u202egnp", "abc_gnp.png"),
        ("{prompt:.2}/{slug}", "..", "__/prompt.png"),
        ("{{{index}}}", "x", "{7}.png"),
        ("{tag}-{n:03d}", "x", "a_b-004.png"),
        ("{gone}", "x", "_.png"),
        ("{flag}", "x", "true.png"),
    ],
)
def test_names(template: str, prompt: str, name: str) -> None:
    assert render(template, prompt, tag="a/b", n=4, gone=None, flag=True) == name


@pytest.mark.parametrize("character", ["猫", "🌟", "é", "x"])
def test_long_names_are_cut_between_characters(character: str) -> None:
    name = render("{prompt}-{index}", character * 300)
    assert len(name.encode()) <= 255
    assert re.fullmatch(rf"({character})+-7\.png", name)


@pytest.mark.parametrize(
    ("prompt", "slug"),
    [
        ("A red circle on a white background", "a-red-circle-on-a-white-background"),
        ("one two three four five six seven eight nine", "one-two-three-four-five-six-seven-eight"),
        ("x" * 50, "x" * 40),
        ("红色的圆形。白色背景", "红色的圆形-白色背景"),
        ("नमस्ते दुनिया", "नमस्ते-दुनिया"),
        ("Café Ünïcode", "café-ünïcode"),
        ("🌟🎂❤️", "prompt"),
        ("!!!", "prompt"),
        ("snake_case  --  x", "snake-case-x"),
    ],
)
def test_slugs(prompt: str, slug: str) -> None:
    assert slugify(prompt) == slug


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("../{index}", "leaves the run folder"),
        ("a/../../{index}", "leaves the run folder"),
        ("./{index}", "leaves the run folder"),
        ("/tmp/{index}", "make it relative"),
        ("~/{index}", "make it relative"),
        ("C:{index}", "make it relative"),
        ("a//{index}", "has an empty part"),
        ("{index}/", "has an empty part"),
        ("", "has an empty part"),
        ("a\\{index}", "cannot be in a file name"),
        ("a*{index}", "cannot be in a file name"),
        ("{index}.png", "leave the suffix out"),
        ("{index", "write {{ for a brace"),
        ("{}", "is not a field; fields: index"),
        ("{prompt.x}", "is not a field"),
        ("{prompt[0]}", "is not a field"),
        ("{index!r}", "conversions are not supported"),
        ("{index:0999999999d}", "does not suit a name"),
        ("{index:/>5d}", "does not suit a name"),
        ("{index:{seed}}", "does not suit a name"),
        ("{slug:05d}", "does not suit 'x'"),
        ("x" * 101, "more than 100 bytes of fixed text"),
    ],
)
def test_bad_templates(template: str, message: str) -> None:
    with pytest.raises(NameTemplateError, match=re.escape(message)):
        NameTemplate(template)


@pytest.mark.parametrize(
    ("columns", "message"),
    [({"tag": [1]}, "holds a list or mapping"), ({"tag": "x"}, "does not suit 'x'")],
)
def test_columns_that_make_no_name(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(NameTemplateError, match=message):
        render("{tag:03d}", "x", **columns)


def test_unknown_fields_are_found_with_the_columns_at_hand() -> None:
    template = NameTemplate("{index}-{colour}")
    template.check_known({"colour": "red"})
    with pytest.raises(NameTemplateError, match="did you mean 'color'"):
        template.check_known({"color": "red"})


TEMPLATES = [
    "{prompt}",
    "{index}-{prompt}",
    "{prompt}-{seed}",
    "{slug}",
    "{tag}/{prompt}/{slug}",
    "{prompt}{tag}{prompt}{slug}-{index:05d}",
    "{tag:>50}{prompt:.180}",
    "-.{prompt}.",
]
anything = st.text(st.characters(codec=None), max_size=400) | st.sampled_from(
    ["..", ".", "/", "NUL", "aux.x", "-", " ", "a/..", "\x00", "\ud800"]
)


@settings(deadline=None)  # a busy machine is no failure
@given(st.sampled_from(TEMPLATES), anything, anything, st.sampled_from([".png", ".webm"]))
def test_a_name_is_safe_whatever_the_prompt(
    template: str, prompt: str, tag: str, suffix: str
) -> None:
    name = render(template, prompt, suffix, tag=tag)
    segments = name.split("/")
    assert len(segments) == template.count("/") + 1
    assert name.endswith(suffix)
    for segment in segments:
        assert 0 < len(segment.encode()) <= 255
        assert not re.search(r'[\x00-\x1f\x7f\\:*?"<>|\ud800-\udfff\u202a-\u202e]', segment)
        assert segment[0] not in "-. "
        assert segment[-1] not in ". "
        assert segment.split(".")[0].upper() not in {"CON", "PRN", "AUX", "NUL", "COM1", "LPT9"}
    if "{index" in template:
        assert "7" in name
