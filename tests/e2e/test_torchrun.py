"""`diffbatch run` inside a torchrun that somebody else started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import command
from tests.e2e.conftest import Uninterrupted

pytestmark = [pytest.mark.e2e]


def test_inside_torchrun_the_same_bytes_come_out(
    uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    ended = _torchrun("run", uninterrupted.job, "--output", folder)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("17 of 17 done, 17 of them now") == 1, "one rank speaks"
    uninterrupted.assert_equals(folder)
    facts = json.loads((folder / "run.json").read_text())
    assert facts["layout"]["replicas"] == 2
    logs = sorted(path.name for path in (folder / "logs").iterdir())
    assert logs == ["rank-0.log", "rank-1.log"], "as in a run that starts torchrun itself"
    assert "%|" not in ended.stderr, "no bars of libraries"

    sizes = {path: path.stat().st_size for path in (folder / "logs").iterdir()}
    ended = _torchrun("run", uninterrupted.job, "--output", folder)
    assert ended.returncode == 0, ended.stderr
    assert "17 of 17 done, nothing left to do" in ended.stdout
    assert {path: path.stat().st_size for path in sizes} == sizes, "no rank loaded the model"
    command.assert_all_gone(folder)


def _torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [sys.executable, *launch, "-m", "diffbatch", *map(str, arguments)],
        env=command.environment(),
        capture_output=True,
        text=True,
        timeout=command.TIMEOUT_S,
        cwd=command.ROOT,
        check=False,
    )
