"""The example job shows what it is meant to show: many kinds of prompts from three sources."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diffbatch.job.load import load_job
from diffbatch.job.overrides import CommandLine
from diffbatch.job.spec import FileEntry, PromptEntry
from diffbatch.launch.prepare import prepare
from diffbatch.req import Req
from tests.unit.model_kit import make_model

JOB = Path(__file__).parents[2] / "jobs" / "promo.yaml"


@pytest.fixture(scope="module")
def reqs(tmp_path_factory: pytest.TempPathFactory) -> list[Req]:
    model = make_model(tmp_path_factory.mktemp("promo") / "m")
    return list(prepare(JOB, [], CommandLine(keys={"model": str(model)})).reqs())


def test_it_has_three_kinds_of_source() -> None:
    entries = load_job(JOB).spec.prompts
    assert any(isinstance(entry, str | PromptEntry) for entry in entries)
    assert any(isinstance(entry, PromptEntry) and entry.with_ for entry in entries)
    assert any(isinstance(entry, FileEntry) for entry in entries)


def test_it_asks_for_two_dozen_different_pictures(reqs: list[Req]) -> None:
    assert len(reqs) >= 24
    assert len({req.id for req in reqs}) == len(reqs)
    assert len({req.file for req in reqs}) == len(reqs)


@pytest.mark.parametrize(
    "pattern",
    [r",", r'"', "[\u4e00-\u9fff]", "[\U0001f300-\U0001faff]", r"^(\S+\s+){399,}\S+$"],
    ids=["comma", "quote", "chinese", "emoji", "400 words"],
)
def test_its_file_holds_what_real_prompts_hold(reqs: list[Req], pattern: str) -> None:
    from_file = [req for req in reqs if req.params.num_inference_steps == 6]
    assert len(from_file) == 12
    assert any(re.search(pattern, req.prompt) for req in from_file)
