"""Signals that mean "stop, you will be started again": exit 75, and the next run goes on."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.e2e import command
from tests.e2e.conftest import Uninterrupted

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STOP_S = 25.0  # Slurm and torchrun kill 30 s after the first signal


def test_a_stopped_run_exits_75_and_goes_on(uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    base = ("run", uninterrupted.job, "--output", folder, "--replicas", 2)
    moments = ((signal.SIGUSR1, 0), (signal.SIGTERM, 1), (signal.SIGINT, 1))

    for number, more in moments:
        before = command.num_recorded(folder)
        with command.running(*base) as process:
            command.wait_until(lambda: command.workers(folder), "workers")
            command.wait_for_more_records(folder, more, process)
            process.send_signal(number)
            begin_s = time.monotonic()
            ended = command.finish(process)
        assert time.monotonic() - begin_s < STOP_S
        assert ended.code == 75, ended
        assert f"stopped by {number.name}" in ended.out
        assert "run the same command again to go on" in ended.out
        assert ended.err == ""
        command.assert_all_gone(folder)
        assert not list((folder / "manifest").iterdir()), "the records are merged"
        assert before + more <= len(command.records(folder)) < uninterrupted.num

    command.run(*base, "--quiet")
    uninterrupted.assert_equals(folder)
