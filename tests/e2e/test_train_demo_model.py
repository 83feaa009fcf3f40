"""The training script starts from nothing, logs loss and ETA, and goes on after a kill."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE_S = 90.0


@pytest.mark.e2e
@pytest.mark.slow
def test_training_logs_loss_and_eta_and_resumes_after_a_kill(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = _start(tmp_path, log)
    _wait_for(r"denoiser step \d+ loss [\d.]+ spent \d+ s ETA \d+ s", log, first)
    _wait_for_file(tmp_path / "work" / "denoiser.ckpt", first)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()

    second_log = tmp_path / "log2"
    second = _start(tmp_path, second_log)
    _wait_for(r"vae resumed at step \d+", second_log, second)
    _wait_for(r"denoiser resumed at step \d+", second_log, second)
    _wait_for(r"wrote ", second_log, second)
    assert second.wait(timeout=DEADLINE_S) == 0
    assert (tmp_path / "weights" / "model_index.json").exists()


def _start(folder: Path, log: Path) -> subprocess.Popen[bytes]:
    budget = ["--vae-minutes", "0.05", "--text-minutes", "0.05", "--minutes", "0.2"]
    often = ["--pictures", "256", "--save-every-s", "2", "--log-every-s", "2"]
    paths = ["--work", str(folder / "work"), "--out", str(folder / "weights")]
    return subprocess.Popen(
        [sys.executable, "-m", "demo_model.train", *budget, *often, *paths],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}", "OMP_NUM_THREADS": "1"},
        stdout=log.open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _wait_for(pattern: str, log: Path, process: subprocess.Popen[bytes]) -> None:
    _poll(lambda: re.search(pattern, log.read_text()) is not None, process, log)


def _wait_for_file(path: Path, process: subprocess.Popen[bytes]) -> None:
    _poll(path.exists, process, path)


def _poll(done: object, process: subprocess.Popen[bytes], what: Path) -> None:
    assert callable(done)
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline, f"{what}: nothing after {DEADLINE_S:.0f} s"
        assert process.poll() in (None, 0), f"training stopped with {process.returncode}"
        time.sleep(0.2)
