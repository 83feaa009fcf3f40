"""kill -9 at any moment: no process is left, and the next run goes on as if nothing had been."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e import command
from tests.e2e.conftest import Uninterrupted

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_workers_killed_at_three_moments(uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    base = ("run", uninterrupted.job, "--output", folder, "--replicas", 2)
    once = (*base, "--max-restarts", 0)

    for more, rank in ((0, 1), (1, 0)):
        with command.running(*once) as process:
            command.wait_until(lambda: len(command.workers(folder)) == 2, "workers")
            command.wait_for_more_records(folder, more, process)
            command.kill(command.workers(folder)[rank])
            ended = command.finish(process)
        assert ended.code == 1, ended
        assert ended.err.count("\n") == 1, "one message, no traceback"
        assert f"the worker of local rank {rank} was killed by signal 9" in ended.err
        assert "the same command goes on from there" in ended.err
        command.assert_all_gone(folder)
    assert 1 <= command.num_recorded(folder) < uninterrupted.num

    with command.running(*base) as process:  # this one starts dead workers again
        command.wait_until(lambda: len(command.workers(folder)) == 2, "workers")
        command.wait_for_more_records(folder, 3, process)
        command.kill(command.workers(folder)[1])
        ended = command.finish(process)
    assert ended.code == 0, ended
    assert json.loads((folder / "run.json").read_text())["num_starts"] == 2
    command.assert_all_gone(folder)
    uninterrupted.assert_equals(folder)


def test_parent_killed_at_three_moments(uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    base = ("run", uninterrupted.job, "--output", folder, "--replicas", 2)

    for more in (None, 1, 3):
        with command.running(*base) as process:
            command.wait_until(lambda: _torchrun(folder), "torchrun")
            if more is not None:
                command.wait_for_more_records(folder, more, process)
            process.kill()
        command.assert_all_gone(folder)
    recorded = command.num_recorded(folder)
    assert 4 <= recorded < uninterrupted.num

    ended = command.run(*base)
    made = re.search(r"17 of 17 done, (\d+) of them now", ended.out)
    assert made is not None
    assert 0 < int(made[1]) <= uninterrupted.num - recorded, "nothing is made twice"
    command.assert_all_gone(folder)
    uninterrupted.assert_equals(folder)


def _torchrun(folder: Path) -> bool:
    return any(b"diffbatch.worker.agent" in line for line in command.processes(folder).values())
