"""The training data: scenes with one coloured shape, their pictures and their captions.

Some (colour, shape, background) triples are never drawn for training: the accuracy of the
model is measured on those.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diffbatch.models.demo.shapes import BACKGROUNDS, OBJECT_COLOURS, PALETTE, SHAPES, shape_mask

SIDE_PX = 64
SIZES = ("small", "large")
PLACES = ("left", "middle", "right")

_RADIUS = {"small": (0.19, 0.22), "large": (0.30, 0.34)}
_BACKGROUND_WEIGHTS = (3.0, 2.0, 1.2, 1.0, 1.0, 1.0, 1.0)
_PLACE_WEIGHTS = (1, 3, 1)
_SIZE_WORDS = {"small": ("small", "small", "little", "tiny"), "large": ("large", "large", "big")}
_PLACE_WORDS = {
    "left": ("on the left",),
    "middle": ("in the middle", "in the center"),
    "right": ("on the right",),
}
_ARTICLES = ("a", "a", "a", "the", "one", "a picture of a", "a drawing of a")
_UNKNOWN_WORD = "zzz"  # any word outside the vocabulary becomes the unknown token
_HELD_OUT_SHARE = 0.1
_DIFFICULT_SHAPES = {"star": 3.0, "cross": 1.5, "ring": 1.5}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What a picture shows, in words; everything else about it is chance."""

    colour: str
    shape: str
    background: str
    size: str
    place: str

    @property
    def held_out(self) -> bool:
        """Whether the triple of colour, shape and background is kept out of the training data."""
        key = f"{self.colour} {self.shape} {self.background}".encode()
        return hashlib.sha256(key).digest()[0] < 256 * _HELD_OUT_SHARE


@dataclass(frozen=True, kw_only=True, slots=True)
class Caption:
    """A caption and what of the scene it names: attribute -> value, missing where it is silent."""

    text: str
    named: dict[str, str]


ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "colour": OBJECT_COLOURS,
    "shape": SHAPES,
    "background": BACKGROUNDS,
    "size": SIZES,
    "place": PLACES,
}


def sample_scene(rng: random.Random) -> Scene:
    """A scene from the training distribution; held-out ones are drawn again."""
    while True:
        scene = Scene(
            colour=rng.choice(OBJECT_COLOURS),
            shape=rng.choice(SHAPES),
            background=rng.choices(BACKGROUNDS, _BACKGROUND_WEIGHTS)[0],
            size=rng.choice(SIZES),
            place=rng.choices(PLACES, _PLACE_WEIGHTS)[0],
        )
        if scene.colour != scene.background and not scene.held_out:
            return scene


def difficulty(scene: Scene) -> float:
    """How often training draws the scene, relative to an easy one.

    The shapes that are learnt last are a few latent pixels wide or full of corners.
    """
    return (2.0 if scene.size == "small" else 1.0) * _DIFFICULT_SHAPES.get(scene.shape, 1.0)


def render(scene: Scene, rng: random.Random) -> npt.NDArray[np.uint8]:
    """A picture of the scene, (SIDE_PX, SIDE_PX, 3), 0..255."""
    radius = rng.uniform(*_RADIUS[scene.size])
    offset = {"left": -1, "middle": 0, "right": 1}[scene.place] * (
        0.5 - radius - rng.uniform(0.03, 0.07)
    )
    centre = (0.5 + offset + rng.uniform(-0.02, 0.02), 0.5 + rng.uniform(-0.05, 0.05))
    coverage = shape_mask(scene.shape, SIDE_PX, centre, radius)[..., None]
    ink, paper = _jittered(scene.colour, rng), _jittered(scene.background, rng)
    mixed = coverage * ink + (1 - coverage) * paper
    return np.clip(mixed + 0.5, 0, 255).astype(np.uint8)


def caption(scene: Scene, rng: random.Random) -> Caption:
    """A caption that names most of the scene, or one attribute of it, or nothing (for guidance)."""
    kind = rng.random()
    if kind < 0.10:
        return Caption(text="", named={})
    if kind < 0.18:
        return _bare(scene, rng)
    named = {"shape": scene.shape}
    head = rng.choice(_ARTICLES)
    words = [head]
    if rng.random() < 0.5:
        named["size"] = scene.size
        words.append(rng.choice(_SIZE_WORDS[scene.size]))
    if rng.random() < 0.95:
        named["colour"] = scene.colour
        words.append(scene.colour)
    if rng.random() < 0.03:
        words.insert(rng.randrange(1, len(words) + 1), _UNKNOWN_WORD)
    words.append(scene.shape)
    if rng.random() < 0.35:
        named["place"] = scene.place
        words.append(rng.choice(_PLACE_WORDS[scene.place]))
    if rng.random() < 0.88:
        named["background"] = scene.background
        words.append(
            rng.choice(("on a", "on a", "on a", ", ", "on")) + f" {scene.background} background"
        )
    return Caption(text=" ".join(words), named=named)


def plain_prompt(scene: Scene) -> str:
    """The wording used to measure accuracy: everything is named."""
    place = _PLACE_WORDS[scene.place][0]
    return f"a {scene.size} {scene.colour} {scene.shape} {place} on a {scene.background} background"


def held_out_prompts(num: int) -> list[tuple[str, Scene]]:
    """The first `num` of a fixed shuffle of prompts whose scenes were never trained on.

    Half of them leave out size and place, as a newcomer's prompt does.
    """
    scenes = [
        Scene(colour=colour, shape=shape, background=background, size=size, place=place)
        for colour in OBJECT_COLOURS
        for shape in SHAPES
        for background in BACKGROUNDS
        for size in SIZES
        for place in PLACES
        if colour != background
    ]
    scenes = [scene for scene in scenes if scene.held_out]
    random.Random(1).shuffle(scenes)
    short = "a {0.colour} {0.shape} on a {0.background} background"
    return [
        (plain_prompt(scene) if k % 2 else short.format(scene), scene)
        for k, scene in enumerate(scenes[:num])
    ]


def vocabulary() -> list[str]:
    """Every word a caption can hold, in a fixed order."""
    words = [",", "a", "the", "one", "of", "on", "in", "picture", "drawing", "background"]
    words += PALETTE
    words += SHAPES
    phrases = [*_SIZE_WORDS.values(), *_PLACE_WORDS.values()]
    words += [word for phrase in phrases for choice in phrase for word in choice.split()]
    return list(dict.fromkeys(words))


def _bare(scene: Scene, rng: random.Random) -> Caption:
    attribute = rng.choice(("colour", "shape", "background", "background", "size", "place"))
    value = getattr(scene, attribute)
    text = {
        "colour": rng.choice((value, f"a {value} shape")),
        "shape": rng.choice((value, f"a {value}")),
        "background": rng.choice((f"{value} background", f"a {value} background")),
        "size": value,
        "place": _PLACE_WORDS[scene.place][0],
    }[attribute]
    return Caption(text=text, named={attribute: value})


def _jittered(colour: str, rng: random.Random) -> npt.NDArray[np.float32]:
    # Brightness moves more than hue: independent jitter of more than 2 tints white visibly.
    common = rng.uniform(-5, 5)
    return np.array([c + common + rng.uniform(-2, 2) for c in PALETTE[colour]], dtype=np.float32)
