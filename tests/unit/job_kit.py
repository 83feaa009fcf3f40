"""Write a job into a folder, expand it with a pretend model, or say what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from diffbatch.errors import JobError
from diffbatch.job.expand import expand
from diffbatch.job.load import load_job
from diffbatch.job.overrides import CommandLine
from diffbatch.req import Req, SamplingParams

MODEL_DEFAULTS = {"height": 64, "width": 64, "num_frames": 1, "num_inference_steps": 8}


def fits(params: SamplingParams) -> list[str]:
    """A model that takes multiples of 8."""
    return [f"height {params.height} is not a multiple of 8"] if (params.height or 0) % 8 else []


def make(folder: Path, text: str, sets: Sequence[str] = (), **options: Any) -> list[Req]:
    """The requests of the job `text`, which is written to folder/job.yaml."""
    path = folder / "job.yaml"
    if "model:" not in text:
        text = f"model: demo\n{text}"
    path.write_text(text, encoding="utf-8")
    command_line = CommandLine(sets=sets, params=options.pop("params", {}))
    given = {"model_key": "m", "model_defaults": MODEL_DEFAULTS, "modality": "image", "check": fits}
    return list(expand(load_job(path, command_line), **{**given, **options}))


def wrong(folder: Path, text: str, sets: Sequence[str] = (), **options: Any) -> list[str]:
    """The problems of the job `text`, one string each, with the folder left out."""
    with pytest.raises(JobError) as caught:
        make(folder, text, sets, **options)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]
