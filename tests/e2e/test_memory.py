"""The plan's bytes against those that the ranks of a real run report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import tiny_checkpoint
from tests.e2e import command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SHORT = {
    "height": 32,
    "width": 32,
    "num_frames": 1,
    "num_inference_steps": 1,
    "max_sequence_length": 16,
}
SETS = [part for name, value in SHORT.items() for part in ("--set", f"defaults.{name}={value}")]


def arguments(folder: Path, *more: object) -> tuple[object, ...]:
    return ("--model", tiny_checkpoint("wan"), "-p", "a cat", "-o", folder, *SETS, *more)


def plan(folder: Path, *more: object) -> dict[str, Any]:
    ended = command.run("plan", *arguments(folder, *more), "--json")
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_auto_cuts_the_model_and_the_ranks_hold_what_the_plan_says(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    whole, half = (plan(folder, "--pp", pp)["memory"]["ranks"][0] for pp in (1, 2))
    assert half["total_bytes"] < whole["total_bytes"]
    choices = ("--parallel", "auto", "--replicas", 1, "--memory-gb", half["total_bytes"] / 1e9)
    planned = plan(folder, *choices)
    assert planned["layout"]["pp"] == 2
    command.run("run", *arguments(folder, *choices))
    facts = json.loads((folder / "run.json").read_text())
    assert facts["layout"]["pp"] == 2
    held = {
        rank: parts["transformer"]["bytes_held"] for rank, parts in facts["transformers"].items()
    }
    assert held == {
        str(rank["rank"]): rank["weights"]["transformer"] for rank in planned["memory"]["ranks"]
    }
    for parts in facts["transformers"].values():
        assert parts["transformer"]["bytes_read"] == parts["transformer"]["bytes_held"]


def test_a_run_that_does_not_fit_ends_with_code_2_and_makes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    ended = command.run("run", *arguments(folder, "--memory-gb", 0.0001), code=2)
    assert "rank 0 of a replica needs" in ended.err
    assert "no layout fits" in ended.err
    assert not list(folder.glob("*.png"))


def test_devices_are_refused_where_there_are_no_gpus(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for name in ("run", "plan"):
        ended = command.run(name, *arguments(folder, "--devices", "0,1"), code=2)
        assert "there is no GPU here" in ended.err
