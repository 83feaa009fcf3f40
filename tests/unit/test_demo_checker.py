"""The checker of the demo model reads drawn pictures, whose content is known."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest

from diffbatch.models.demo.checker import Seen, look
from diffbatch.models.demo.shapes import BACKGROUNDS, OBJECT_COLOURS, PALETTE, SHAPES

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from demo_model.draw import SIDE_PX, Scene, held_out_prompts, render, sample_scene, vocabulary


def _expected(scene: Scene) -> Seen:
    return Seen(background=scene.background, colour=scene.colour, shape=scene.shape)


def test_checker_reads_drawn_pictures() -> None:
    rng = random.Random(5)
    scenes = [sample_scene(rng) for _ in range(200)]
    wrong = [scene for scene in scenes if look(render(scene, rng)) != _expected(scene)]
    assert len(wrong) <= 1, wrong


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", ["small", "large"])
def test_checker_tells_each_shape_at_each_size(shape: str, size: str) -> None:
    scene = Scene(colour="red", shape=shape, background="white", size=size, place="middle")
    assert look(render(scene, random.Random(0))).shape == shape


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_checker_sees_no_object_on_an_empty_picture(background: str) -> None:
    picture = np.full((SIDE_PX, SIDE_PX, 3), PALETTE[background], dtype=np.uint8)
    assert look(picture) == Seen(background=background, colour=None, shape=None)


def test_checker_survives_noise() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (SIDE_PX, SIDE_PX, 3), dtype=np.uint8)
    assert look(noise).background in PALETTE


def test_held_out_prompts_are_never_trained_on() -> None:
    rng = random.Random(0)
    trained = {
        (s.colour, s.shape, s.background) for s in (sample_scene(rng) for _ in range(20_000))
    }
    held_out = {(s.colour, s.shape, s.background) for _, s in held_out_prompts(120)}
    assert not trained & held_out
    assert {s.colour for _, s in held_out_prompts(120)} == set(OBJECT_COLOURS)
    assert {s.shape for _, s in held_out_prompts(120)} == set(SHAPES)


def test_every_word_of_the_held_out_prompts_is_in_the_vocabulary() -> None:
    words = {word for prompt, _ in held_out_prompts(120) for word in prompt.split()}
    assert words <= set(vocabulary())
