from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffbatch.job.products import prompts_of
from diffbatch.job.spec import Params
from diffbatch.req import PARAM_NAMES, SamplingParams
from tests.unit.job_kit import MODEL_DEFAULTS, make, wrong

ROOT = Path(__file__).parents[2]


def test_parameters_are_those_of_the_request() -> None:
    assert tuple(Params.model_fields) == PARAM_NAMES


def test_a_text_takes_defaults_and_the_models_own_values(tmp_path: Path) -> None:
    [req] = make(tmp_path, "defaults: {width: 128, guidance_scale: 1e0}\nprompts: [a cat]")
    assert (req.index, req.prompt, req.seed, req.file) == (0, "a cat", 0, "00000-a-cat-0.png")
    assert req.params == SamplingParams(
        height=64, width=128, num_frames=1, num_inference_steps=8, guidance_scale=1.0
    )


def test_precedence(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("prompt,num_inference_steps\na,5\nb,\n")
    text = (
        "defaults: {num_inference_steps: 3}\n"
        "prompts:\n- x\n- {prompt: y, num_inference_steps: 4}\n"
        "- {file: p.csv, num_inference_steps: 6}\n"
    )

    def steps(**options: Any) -> list[int | None]:
        return [req.params.num_inference_steps for req in make(tmp_path, text, **options)]

    assert steps() == [3, 4, 5, 6]
    assert steps(sets=["defaults.num_inference_steps=9"]) == [9, 4, 5, 6]
    assert steps(params={"num_inference_steps": 2}) == [2, 2, 2, 2]
    without = text.replace("defaults: {num_inference_steps: 3}\n", "")
    assert make(tmp_path, without)[0].params.num_inference_steps == 8


def test_null_counts_as_not_given(tmp_path: Path) -> None:
    text = "defaults: {negative_prompt: bad}\nprompts:\n- {prompt: a, negative_prompt: null}\n"
    text += "- {prompt: a, negative_prompt: ''}\n"
    assert [req.params.negative_prompt for req in make(tmp_path, text)] == ["bad", ""]


def test_seeds_and_numbers_of_outputs(tmp_path: Path) -> None:
    text = (
        "defaults: {seed: 5}\nprompts:\n- a\n- {prompt: b, seed: [1, 3]}\n"
        "- {prompt: c, num_outputs_per_prompt: 3}\n"
        f"- {{prompt: d, seed: {2**64 - 1}}}\n"
    )
    reqs = make(tmp_path, text)
    assert [req.seed for req in reqs] == [5, 1, 3, 5, 6, 7, 2**64 - 1]
    assert [req.index for req in reqs] == list(range(7))
    forced = make(tmp_path, text, params={"seed": 2, "num_outputs_per_prompt": 1})
    assert [req.seed for req in forced] == [2] * 4


def test_products(tmp_path: Path) -> None:
    text = (
        "name: '{shape}/{color}-{n}'\n"
        "prompts:\n- prompt: 'a {color} {shape} {{literally}}, {n} of it'\n"
        "  with: {color: [red, blue], shape: [circle, square], n: [2, '03']}\n"
    )
    reqs = make(tmp_path, text)
    assert len(reqs) == 8
    assert reqs[0].prompt == "a red circle {literally}, 2 of it"
    assert reqs[1].file == "circle/red-03.png"
    assert reqs[-1].prompt == "a blue square {literally}, 03 of it"


def test_without_with_braces_are_text(tmp_path: Path) -> None:
    [req] = make(tmp_path, "prompts: ['{red|blue} {']")
    assert req.prompt == "{red|blue} {"


names = st.text("abcdef", min_size=1, max_size=3)
values = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3)


@given(st.dictionaries(names, values, min_size=1, max_size=3), st.text(max_size=10))
@settings(max_examples=50, deadline=None)
def test_a_product_is_every_combination_with_any_text_around(
    lists: dict[str, list[str]], around: str
) -> None:
    escaped = around.replace("{", "{{").replace("}", "}}")
    template = escaped + escaped.join(f"{{{name}}}" for name in lists) + escaped
    found = list(prompts_of(template, lists))
    combinations = list(itertools.product(*lists.values()))
    assert [prompt for prompt, _ in found] == [
        around + around.join(combination) + around for combination in combinations
    ]
    assert [tuple(chosen.values()) for _, chosen in found] == combinations


def test_images_are_hashed_and_relative_to_where_they_were_named(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "cat.png").write_bytes(b"cat")
    (tmp_path / "sub" / "cat.png").write_bytes(b"another cat")
    (tmp_path / "sub" / "p.csv").write_text("prompt,image\nb,cat.png\nc,\n")
    text = "prompts:\n- {prompt: a, image: cat.png}\n- {file: sub/p.csv, image: cat.png}\n"
    a, b, c = make(tmp_path, text)
    assert a.params.image == c.params.image == str(tmp_path / "cat.png")
    assert b.params.image == str(tmp_path / "sub" / "cat.png")
    assert a.params.image_sha256 == c.params.image_sha256
    assert a.params.image_sha256 != b.params.image_sha256


def test_an_id_follows_content_and_not_place(tmp_path: Path) -> None:
    first = make(tmp_path, "prompts: [a, b, a, a]")
    ids = [req.id for req in first]
    assert ids[2:] == [f"{ids[0]}-1", f"{ids[0]}-2"]
    assert len({req.file for req in first}) == 4
    swapped = make(tmp_path, "name: x-{index}\noutput: elsewhere\nprompts: [b, a]")
    assert [req.id for req in swapped] == [ids[1], ids[0]]
    other = make(tmp_path, "defaults: {height: 72}\nprompts: [a]")
    assert other[0].id not in ids
    assert make(tmp_path, "prompts: [a]", model_key="n")[0].id not in ids


def test_equal_parameters_are_one_object_and_checked_once(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "height": 72}\n"b"\n' * 50)
    seen: list[SamplingParams] = []

    def check(params: SamplingParams) -> list[str]:
        seen.append(params)
        return []

    reqs = make(tmp_path, "prompts: [x, {file: p.jsonl}]", check=check)
    assert len(reqs) == 101
    assert len({id(req.params) for req in reqs}) == len(seen) == 2


def test_a_failed_check_is_said_once_at_its_first_use(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("prompt,height\na,64\n" + "b,60\n" * 50)
    problems = wrong(tmp_path, "prompts: [{file: p.csv}]")
    assert problems == ["p.csv:3: height 60 is not a multiple of 8"]


@pytest.mark.parametrize(
    ("modality", "entry", "suffix"),
    [
        ("image", "", "png"),
        ("video", "num_frames: 1", "png"),
        ("video", "num_frames: 5", "mp4"),
    ],
)
def test_suffix_by_default(tmp_path: Path, modality: str, entry: str, suffix: str) -> None:
    [req] = make(tmp_path, f"prompts: [{{prompt: a, {entry}}}]", modality=modality)
    assert req.file == f"00000-a-0.{suffix}"


@pytest.mark.parametrize("file_format", ["png", "jpg", "webp", "mp4", "gif", "webm", "npy"])
def test_one_frame_goes_into_any_format(tmp_path: Path, file_format: str) -> None:
    [req] = make(tmp_path, f"format: {file_format}\nprompts: [a]")
    assert req.file == f"00000-a-0.{file_format}"


def test_frames_that_the_model_decides_are_no_still(tmp_path: Path) -> None:
    problems = wrong(tmp_path, "format: jpg\nprompts: [a]", model_defaults={}, modality="video")
    assert "format jpg cannot hold several frames" in problems[0]


def test_equal_starts_of_prompts_collide_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("x" * 180 + "one\n" + "x" * 180 + "two\n")
    [problem] = wrong(tmp_path, "name: '{prompt:.180}'\nprompts: [{file: p.txt}]")
    assert problem.startswith("p.txt:2: requests 0 and 1 would both be called 'xxx")
    assert "add {index} or {seed} to the name template" in problem


def test_layouts_of_evaluators(tmp_path: Path) -> None:
    text = "prompts: [a dog, a cat]\ndefaults: {num_outputs_per_prompt: 2, seed: 42}\n"
    geneval = make(tmp_path, f"{text}name: '{{prompt_index:05d}}/samples/{{output_index:04d}}'")
    assert [req.file for req in geneval] == [
        "00000/samples/0000.png",
        "00000/samples/0001.png",
        "00001/samples/0000.png",
        "00001/samples/0001.png",
    ]
    vbench = make(tmp_path, f"{text}format: mp4\nname: '{{prompt:.180}}-{{output_index}}'")
    assert [req.file for req in vbench][:2] == ["a dog-0.mp4", "a dog-1.mp4"]


def test_the_promo_job() -> None:
    from diffbatch.job.expand import expand
    from diffbatch.job.load import load_job

    job = load_job(ROOT / "jobs" / "promo.yaml")
    reqs = list(
        expand(
            job,
            model_key="m",
            model_defaults=MODEL_DEFAULTS,
            modality="video",
            check=lambda params: [],
        )
    )
    assert len(reqs) >= 24
    assert len({req.file for req in reqs}) == len({req.id for req in reqs}) == len(reqs)
    assert all(req.file.endswith(".png") for req in reqs)
    assert max(len(req.prompt.split()) for req in reqs) >= 400


def test_expanding_imports_no_torch() -> None:
    script = "import sys, diffbatch.job.expand; print({'torch', 'diffusers'} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
