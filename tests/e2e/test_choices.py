"""Options of `run`: what is made, what is said, and what happens to a folder that is there."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoTokenizer

from tests.e2e import command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

POISON = "~"
_JOB = """
model: {model}
output: unused
defaults: {{height: 32, width: 32, num_frames: 1, num_inference_steps: 1}}
prompts: [a cat, a dog, "[red]a bird[/] :cat:", {prompts}]
parallel: {{replicas: 1}}
"""
Tiny = Callable[[str], Path]


@pytest.fixture(scope="module")
def job(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("choices") / "job.yaml"
    path.write_text(_JOB.format(model=tiny("wan"), prompts="a fish"))
    return path


def test_two_runs_side_by_side_and_a_third_that_is_refused(job: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    with (
        command.running("run", job, "-o", one, "--limit", 2, "--json") as first,
        command.running("run", job, "-o", other, "--only", "*dog*", "--quiet") as second,
    ):
        command.wait_until(lambda: (one / "logs").exists(), "start of the first run")
        refused = command.run("run", job, "-o", one, code=2)
        assert f"one is in use by another run: pid {first.pid} on " in refused.err
        assert "--limit 2" in refused.err, "it says who holds it"
        first_ended, second_ended = command.finish(first), command.finish(second)

    assert (first_ended.code, first_ended.err) == (0, "")
    events = [json.loads(line) for line in first_ended.out.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds.count("record") == 2
    assert {"ready", "started", "left"} <= set(kinds)
    assert events[-1] == {
        "event": "end",
        "done": 2,
        "failed": 0,
        "missing": 0,
        "of": 2,
        "folder": str(one),
    }
    assert set(command.pictures(one)) == {"00000-a-cat-0.png", "00001-a-dog-0.png"}
    for event in events:
        if event["event"] == "record":
            assert command.pictures(one)[event["record"]["file"]] == event["record"]["sha256"]

    assert (second_ended.code, second_ended.out, second_ended.err) == (0, "", "")
    assert set(command.pictures(other)) == {"00001-a-dog-0.png"}
    assert command.pictures(other).items() <= command.pictures(one).items()

    _fresh(job, one)


def _fresh(job: Path, folder: Path) -> None:
    """A fresh start moves the old run aside; an ordinary one then adds what is missing."""
    before = command.contents(folder)
    ended = command.run("run", job, "-o", folder, "--fresh", "--limit", 1)
    aside = folder.with_name("one.old-1")
    assert f"the old run is now in {aside}" in ended.out
    assert "1 of 1 done, 1 of them now" in ended.out
    assert not re.search(r"[\r\x1b]", ended.out + ended.err)
    assert command.contents(aside) == before
    assert set(command.pictures(folder)) == {"00000-a-cat-0.png"}


def test_a_failed_request_is_recorded_and_tried_again_only_when_asked(
    tiny: Tiny, tmp_path: Path
) -> None:
    folder, job = tmp_path / "out", tmp_path / "job.yaml"
    model = tmp_path / "[red]model"
    shutil.copytree(tiny("wan"), model)
    _poison(model)
    job.write_text(_JOB.format(model=f"'{model}'", prompts=f'"{POISON} [/] :dog:"'))

    ended = command.run("run", job, "-o", folder, code=3)
    assert "3 of 4 done, 4 of them now" in ended.out
    assert "failed: 00003-dog-0.png: non-finite pixels (NaN or infinity)" in ended.out
    assert "1 failed, the first: 00003-dog-0.png: non-finite pixels" in ended.out
    assert "try them again with --retry-failed" in ended.out
    statuses = {record["file"]: record["status"] for record in command.records(folder)}
    assert statuses.pop("00003-dog-0.png") == "failed"
    assert set(statuses.values()) == {"ok"}
    assert set(command.pictures(folder)) == set(statuses)

    logs = _sizes(folder / "logs")
    ended = command.run("run", job, "-o", folder, code=3)
    assert "3 of 4 done, nothing left to do" in ended.out
    assert _sizes(folder / "logs") == logs, "no worker was started"

    ended = command.run("run", job, "-o", folder, "--retry-failed", "--json", code=3)
    events = [json.loads(line) for line in ended.out.splitlines()]
    made = [event["record"] for event in events if event["event"] == "record"]
    assert [(record["file"], record["status"]) for record in made] == [
        ("00003-dog-0.png", "failed")
    ]
    assert (events[-1]["done"], events[-1]["failed"]) == (3, 1)


def _poison(model: Path) -> None:
    """Every prompt that holds `POISON` comes out as NaN."""
    path = model / "text_encoder" / "model.safetensors"
    tensors: dict[str, Any] = load_file(path)
    token = AutoTokenizer.from_pretrained(model / "tokenizer")(POISON).input_ids[-2]
    for name, values in tensors.items():
        if name.startswith(("shared", "encoder.embed_tokens")):
            values[token] = np.nan
    save_file(tensors, path, metadata={"format": "pt"})


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}
