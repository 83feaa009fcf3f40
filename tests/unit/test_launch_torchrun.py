"""Which torchrun is started, and what of it is read back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diffbatch.launch import torchrun as module
from diffbatch.launch.torchrun import Torchrun

_SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str = "") -> tuple[Torchrun, Any]:
    """A Torchrun over a stand-in that writes `text` to its log and sleeps; and its command."""
    seen: list[list[str]] = []
    popen = subprocess.Popen

    def record(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        seen.append(command)
        options["stdout"].write(text.encode())
        return popen(_SLEEP, **options)

    monkeypatch.setattr(module.subprocess, "Popen", record)
    log = tmp_path / "torchrun.log"
    log.write_text("failed (exitcode: 7) local_rank: 5 of an earlier run\n")
    made = Torchrun(["SPEC"], num_ranks=3, max_restarts=2, environment={}, log_path=log)
    return made, seen[0]


@pytest.mark.parametrize(
    ("platform", "gpus", "name"),
    [
        ("linux", 0, "diffbatch.worker.agent"),
        ("linux", 2, "torch.distributed.run"),
        ("darwin", 0, "torch.distributed.run"),
    ],
)
def test_only_cpu_ranks_on_linux_are_forks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, gpus: int, name: str
) -> None:
    monkeypatch.setattr(module.sys, "platform", platform)
    monkeypatch.setattr(module, "num_gpus", lambda: gpus)
    torchrun, command = start(tmp_path, monkeypatch)
    torchrun.kill()
    assert command[1:3] == ["-m", name]
    assert command[-3:] == ["-m", "diffbatch.worker.main", "SPEC"]
    assert command[command.index("--nproc-per-node") + 1] == "3"
    assert torchrun.ended


def test_the_cause_is_that_of_this_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchrun, _ = start(tmp_path, monkeypatch)
    assert torchrun.cause() == ""
    torchrun.kill()


@pytest.mark.parametrize(
    ("code", "how"), [(-9, "was killed by signal 9"), (3, "ended with code 3")]
)
def test_the_cause_names_the_first_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, how: str
) -> None:
    text = f"failed (exitcode: {code}) local_rank: 1 (pid: 1) of binary\nfailed (exitcode: 1) ...\n"
    torchrun, _ = start(tmp_path, monkeypatch, text)
    torchrun.kill()
    assert torchrun.cause() == f"the worker of local rank 1 {how}"
