"""The built wheel holds all that a run needs, the demo model included."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.e2e import command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_the_wheel_runs_from_another_folder(tmp_path: Path) -> None:
    build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, command.ROOT)
    subprocess.run([sys.executable, *map(str, build)], check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    print(f"wheel: {wheel.stat().st_size / 1e6:.2f} MB")
    assert wheel.stat().st_size < 9_000_000
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    arguments = ("run", "--prompt", "a red circle", "--num-inference-steps", "2", "--output", "out")
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "diffbatch", *arguments, "--model", "demo"],
        env={**command.environment(), "PYTHONPATH": os.fspath(tmp_path / "site")},
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended
    assert "1 of 1 done" in ended.stdout
    [record] = command.records(elsewhere / "out")
    assert (record["height"], record["width"], record["num_frames"]) == (64, 64, 1)
    assert (elsewhere / "out" / record["file"]).is_file()
