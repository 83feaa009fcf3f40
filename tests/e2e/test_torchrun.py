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
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = ["-m", "diffbatch", "run", uninterrupted.job, "--output", folder]
    ended = subprocess.run(
        [sys.executable, *launch, *map(str, arguments)],
        env=command.environment(),
        capture_output=True,
        text=True,
        timeout=command.TIMEOUT_S,
        cwd=command.ROOT,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("17 of 17 done, 17 of them now") == 1, "one rank speaks"
    uninterrupted.assert_equals(folder)
    facts = json.loads((folder / "run.json").read_text())
    assert facts["layout"]["replicas"] == 2
    command.assert_all_gone(folder)
