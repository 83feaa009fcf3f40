from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from diffbatch.cli.init import init
from diffbatch.cli.schema import schema
from diffbatch.errors import JobError
from diffbatch.job.load import load_job
from tests.unit.job_kit import make

app = typer.Typer()
app.command()(init)
app.command()(schema)


def test_init_writes_a_job_that_expands(tmp_path: Path) -> None:
    path = tmp_path / "first.yaml"
    result = CliRunner().invoke(app, ["init", str(path)])
    assert result.exit_code == 0
    assert str(path) in result.output
    assert load_job(path).spec.model == "demo"
    assert len(make(tmp_path, path.read_text())) == 8


def test_init_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "first.yaml"
    path.write_text("mine")
    with pytest.raises(JobError, match="exists already; name another file"):
        init(path)
    assert path.read_text() == "mine"
    with pytest.raises(JobError, match="cannot write"):
        init(tmp_path / "none" / "x.yaml")


def test_schema_describes_the_job_file() -> None:
    result = CliRunner().invoke(app, ["schema"])
    assert result.exit_code == 0
    found: dict[str, Any] = json.loads(result.output)
    assert {"model", "prompts", "defaults", "parallel"} <= found["properties"].keys()
    assert found["additionalProperties"] is False
    entry = found["$defs"]["PromptEntry"]
    assert {"prompt", "with", "seed", "height"} <= entry["properties"].keys()
    assert entry["required"] == ["prompt"]
