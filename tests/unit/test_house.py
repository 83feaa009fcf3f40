"""Rules of the house that no linter knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import diffbatch

PACKAGE = Path(diffbatch.__file__).parent
MODEL_NAMES = re.compile(
    r"(?<![a-z])(wan|flux|sd3|sdxl|stable.?diffusion|qwen|ltx|hunyuan|cosmos|umt5|t5)\d*"
    r"(?![a-z])|WanPipeline|FluxPipeline|StableDiffusion",
    re.IGNORECASE,
)


@pytest.mark.parametrize("path", sorted((PACKAGE / "pipeline").glob("*.py")), ids=lambda p: p.stem)
def test_no_stage_knows_the_name_of_a_model(path: Path) -> None:
    code = path.read_text(encoding="utf-8")
    assert not MODEL_NAMES.findall(code)
