"""The shipped demo weights draw what the prompt says, through the plain diffusers pipeline.

The bounds are the model card's accuracies (background and colour 100 %, shape 99.2 %) minus a
margin of about five pictures for the rounding of other CPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from demo_model.draw import held_out_prompts  # noqa: E402
from demo_model.evaluate import draw, load, score  # noqa: E402

from diffbatch.models.demo import demo_folder  # noqa: E402
from diffbatch.models.demo.checker import Picture, look  # noqa: E402
from diffbatch.models.folder import read_model  # noqa: E402
from diffbatch.models.loading import LoadSpec, load_pipeline  # noqa: E402
from diffbatch.pipeline.composed import ComposedPipeline  # noqa: E402
from diffbatch.req import Req, SamplingParams  # noqa: E402
from tests.solo import CPU, our_pixels  # noqa: E402

pytestmark = pytest.mark.parity

MAX_FOLDER_BYTES = 8_000_000
NUM_PROMPTS = 120


@pytest.fixture(scope="module")
def pipeline() -> Iterator[diffusers.WanPipeline]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two threads on busy cores wait for one another: ten times slower
    yield load(demo_folder())
    torch.set_num_threads(threads)


def test_folder_is_at_most_8_megabytes_and_holds_no_pickle() -> None:
    files = [path for path in demo_folder().rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    print(f"demo model: {size / 1e6:.2f} MB in {len(files)} files")
    assert size <= MAX_FOLDER_BYTES
    assert {path.suffix for path in files} <= {".json", ".safetensors", ".md", ".yaml"}


def test_folder_loads_as_a_plain_pipeline_that_can_be_split(
    pipeline: diffusers.WanPipeline,
) -> None:
    config = pipeline.transformer.config
    assert type(pipeline) is diffusers.WanPipeline
    assert config.num_layers % 8 == 0
    assert config.num_attention_heads % 4 == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_pictures_follow_held_out_prompts(pipeline: diffusers.WanPipeline) -> None:
    prompts, scenes = zip(*held_out_prompts(NUM_PROMPTS), strict=True)
    shares = score([look(picture) for picture in draw(pipeline, list(prompts))], list(scenes))
    print(shares)
    assert shares["background"] >= 0.95
    assert shares["colour"] >= 0.95
    assert shares["shape"] >= 0.95
    assert shares["all at once"] >= 0.95


def test_guidance_changes_the_picture(pipeline: diffusers.WanPipeline) -> None:
    prompt = ["a red star on a blue background"] * 4
    weak, strong = (draw(pipeline, prompt, guidance_scale=scale) for scale in (1.0, 4.0))
    assert _mean_difference(weak, strong) > 2
    assert _mean_difference(strong, draw(pipeline, prompt, guidance_scale=4.0)) == 0


def test_diffbatch_draws_the_same_bit_for_bit(pipeline: diffusers.WanPipeline) -> None:
    spec = LoadSpec(folder=demo_folder(), dtype="float32")
    ours = ComposedPipeline(load_pipeline(spec, CPU).pipeline)
    defaults = {**read_model("demo", demo_folder()).defaults, "num_inference_steps": 6}
    params = SamplingParams(**{name: v for name, v in defaults.items() if name != "fps"})
    for seed, prompt in enumerate(["a red star on a blue background", "a large green ring", "fog"]):
        req = Req(index=0, id="0", prompt=prompt, seed=seed, file="0.png", params=params)
        generator = torch.Generator("cpu").manual_seed(seed)
        plain = pipeline(prompt=prompt, generator=generator, output_type="np", **params.as_dict())
        assert np.array_equal(our_pixels(ours, req), plain.frames[0])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_negative_background_is_drawn_less_often(pipeline: diffusers.WanPipeline) -> None:
    def backgrounds(negative: str) -> list[str]:
        pictures = draw(pipeline, ["a red square"] * 24, negative_prompt=negative)
        return [look(picture).background for picture in pictures]

    free = backgrounds("")
    num_free = free.count("white") + free.count("black")
    num_left = sum(backgrounds(f"{name} background").count(name) for name in ("white", "black"))
    print(f"white and black backgrounds: {num_free} free, {num_left} when asked to keep away")
    assert num_free >= num_left + 5


def _mean_difference(left: list[Picture], right: list[Picture]) -> float:
    """The mean absolute difference of two lists of pictures, in steps of 0..255."""
    pairs = zip(left, right, strict=True)
    return float(np.mean([np.abs(a.astype(int) - b.astype(int)).mean() for a, b in pairs]))
