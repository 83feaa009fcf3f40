"""What a model cannot make, and what changes nothing in what it makes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from diffbatch.plan.checks import effective, nearest, param_problems, without_effect
from diffbatch.plan.facts import ModelFacts
from diffbatch.req import SamplingParams
from tests.unit.model_kit import picture_facts, wan_facts

WAN = wan_facts()
FLUX = picture_facts()


@pytest.mark.parametrize(
    ("facts", "params", "problem"),
    [
        (WAN, {"height": 64, "width": 128, "num_frames": 5}, None),
        (WAN, {"num_frames": 1}, None),
        (WAN, {}, None),
        (WAN, {"height": 65}, "height 65 is not a multiple of 16.*nearest: 64 or 80"),
        (WAN, {"width": 500}, "width 500 is not a multiple of 16.*nearest: 496 or 512"),
        (WAN, {"height": 8}, "height 8 is not a multiple of 16.*nearest: 16$"),
        (WAN, {"num_frames": 6}, r"num_frames 6 is not 4n\+1.*nearest: 5 or 9"),
        (WAN, {"num_frames": 2}, r"num_frames 2 is not 4n\+1.*nearest: 1 or 5"),
        (WAN, {"image": "/cat.png"}, "WanPipeline takes no image; leave image out"),
        (FLUX, {"num_frames": 1}, None),
        (FLUX, {"num_frames": 5}, "num_frames 5: FluxPipeline makes pictures; leave num_frames"),
    ],
)
def test_a_problem_has_the_value_the_rule_and_the_way_out(
    facts: ModelFacts, params: dict[str, Any], problem: str | None
) -> None:
    found = param_problems(SamplingParams(**params), facts)
    if problem is None:
        assert found == []
    else:
        [message] = found
        assert re.search(problem, message), message


def test_all_problems_come_at_once() -> None:
    wrong = SamplingParams(height=7, width=7, num_frames=2, image="/cat.png")
    assert len(param_problems(wrong, WAN)) == 4


@pytest.mark.parametrize(
    ("value", "multiple", "more", "expected"),
    [
        (100, 16, {}, "96 or 112"),
        (3, 16, {}, "16"),
        (5, 4, {"plus": 1, "least": 0}, "5 or 9"),
        (1, 4, {"plus": 1, "least": 0}, "1 or 5"),
    ],
)
def test_nearest_names_the_legal_neighbours(
    value: int, multiple: int, more: dict[str, int], expected: str
) -> None:
    assert nearest(value, multiple, **more) == expected


@pytest.mark.parametrize(
    ("facts", "params", "ignored"),
    [
        (WAN, {"negative_prompt": "x", "guidance_scale": 4.0}, []),
        (WAN, {"negative_prompt": "x", "guidance_scale": 1.0}, ["negative_prompt"]),
        (WAN, {"fps": 8, "num_frames": 5}, []),
        (WAN, {"fps": 8, "num_frames": 1}, ["fps"]),
        (WAN, {"guidance_scale_2": 3.0, "guidance_scale": 4.0}, ["guidance_scale_2"]),
        (FLUX, {"negative_prompt": "x", "guidance_scale": 3.5}, ["negative_prompt"]),
        (FLUX, {"num_frames": 1, "height": 64}, []),
        (FLUX, {"fps": 8}, ["fps"]),
    ],
)
def test_what_has_no_effect_is_named_and_dropped(
    facts: ModelFacts, params: dict[str, Any], ignored: list[str]
) -> None:
    given = SamplingParams(**params)
    assert without_effect(given, facts) == ignored
    left = effective(given, facts)
    assert all(getattr(left, name) is None for name in ignored)
    assert without_effect(left, facts) == []


def test_equal_work_is_equal_params() -> None:
    """So that a word that changes nothing costs no new picture."""
    plain = SamplingParams(height=64, guidance_scale=4.0, num_frames=5)
    empty = SamplingParams(height=64, guidance_scale=4.0, num_frames=5, negative_prompt="")
    assert effective(plain, WAN) == effective(empty, WAN)
    still = SamplingParams(height=64, guidance_scale=3.5)
    assert effective(SamplingParams(height=64, guidance_scale=3.5, num_frames=1), FLUX) == still
