"""The tiny checkpoints: same files each time, loadable by diffusers, pictures that differ."""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline, ModularPipeline
from transformers import AutoTokenizer

SCRIPTS = Path(__file__).parents[2] / "scripts"
NAMES = ["wan", "wan22", "sd3", "flux"]
MAX_BYTES = 8_000_000
LONG_PROMPT = " ".join(f"lamp number {index}," for index in range(140))
PROMPTS = [
    "a red circle",
    "a red star",
    '\u4e00\u53ea\u732b \U0001f680 "quoted", text',
    LONG_PROMPT,
]

Tiny = Callable[[str], Path]


def test_files_are_small_and_the_same_each_time(tiny: Tiny, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "tiny_checkpoints", str(tmp_path), *NAMES],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS), "PYTHONHASHSEED": "7"},
        check=True,
        capture_output=True,
    )
    for name in NAMES:
        again = tmp_path / name
        files = sorted(path.relative_to(again) for path in again.rglob("*.*"))
        assert filecmp.cmpfiles(tiny(name), again, files, shallow=False)[0] == files
        assert sum((again / file).stat().st_size for file in files) < MAX_BYTES


@pytest.mark.parametrize("name", ["wan", "sd3"])
def test_any_text_has_ids_of_its_own(name: str, tiny: Tiny) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny(name) / "tokenizer")
    ids = [tuple(tokenizer(prompt, truncation=True).input_ids) for prompt in PROMPTS]
    assert len(set(ids)) == len(PROMPTS)
    assert all(tokenizer.unk_token_id not in row[1:-1] for row in ids)
    assert len(ids[0]) <= 5


@pytest.mark.parity
@pytest.mark.parametrize("name", NAMES)
def test_plain_pipeline_draws_different_pictures(name: str, tiny: Tiny) -> None:
    pipeline = DiffusionPipeline.from_pretrained(tiny(name))
    pipeline.set_progress_bar_config(disable=True)
    pictures = [_pixels(pipeline, name, prompt, seed=0) for prompt in PROMPTS]
    pictures.append(_pixels(pipeline, name, PROMPTS[0], seed=1))
    for picture in pictures:
        assert np.isfinite(picture).all()
        assert picture.std() > 0.05
        assert ((picture <= 0) | (picture >= 1)).mean() < 0.05
    for other in pictures[1:]:
        assert abs(other - pictures[0]).mean() > 0.005


@pytest.mark.parity
@pytest.mark.parametrize("name", NAMES)
def test_modular_pipeline_runs_the_same_folder(name: str, tiny: Tiny) -> None:
    pipeline = ModularPipeline.from_pretrained(str(tiny(name)))  # a Path loads nothing
    pipeline.load_components()
    generator = torch.Generator().manual_seed(0)
    output = "videos" if name.startswith("wan") else "images"
    picture = pipeline(prompt=PROMPTS[0], generator=generator, output=output, **_settings(name))
    assert np.asarray(picture).std() > 0.05


def _pixels(pipeline: Any, name: str, prompt: str, *, seed: int) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    output = pipeline(prompt=prompt, generator=generator, **_settings(name))
    return np.asarray(output.frames if name.startswith("wan") else output.images)


def _settings(name: str) -> dict[str, Any]:
    settings = {"height": 64, "width": 64, "num_inference_steps": 2, "output_type": "np"}
    return settings | ({"num_frames": 5} if name.startswith("wan") else {})
