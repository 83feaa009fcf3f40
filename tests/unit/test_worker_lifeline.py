"""A worker ends by itself when the processes that started it are gone, whatever it is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

GONE_S = 10.0

# Stands for torchrun: starts one worker that is busy for ever, and takes SIGTERM as a wish to end.
_AGENT = """
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]])
print(worker.pid, flush=True)
worker.wait()
import time; time.sleep(600)
"""
_WORKER = """
import sys, time
from diffbatch.worker.lifeline import hold_lifeline
hold_lifeline(int(sys.argv[1]) if sys.argv[1] != "none" else None)
open("/proc/self/comm", "w").write("busy")
time.sleep(600)
"""


@dataclass(frozen=True, slots=True)
class Family:
    """The client's process, the agent's, and the process id of the agent's worker."""

    client: subprocess.Popen[bytes]
    agent: subprocess.Popen[bytes]
    worker_pid: int


def _start(client_pid: str) -> tuple[subprocess.Popen[bytes], int]:
    agent = subprocess.Popen(
        [sys.executable, "-c", _AGENT, client_pid, _WORKER], stdout=subprocess.PIPE
    )
    assert agent.stdout is not None
    with agent.stdout:
        worker_pid = int(agent.stdout.readline())
    _wait_until(lambda: _name(worker_pid) == "busy")
    return agent, worker_pid


@pytest.fixture
def family() -> Iterator[Family]:
    client = subprocess.Popen(["sleep", "600"])
    agent, worker_pid = _start(str(client.pid))
    yield Family(client, agent, worker_pid)
    for pid in (client.pid, agent.pid, worker_pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    client.wait()
    agent.wait()


def test_a_worker_lives_while_both_are_there(family: Family) -> None:
    time.sleep(0.3)
    assert _name(family.worker_pid) == "busy"


def test_a_killed_client_ends_the_worker_and_its_agent(family: Family) -> None:
    family.client.kill()
    _wait_until(lambda: _name(family.worker_pid) != "busy")
    assert family.agent.wait(GONE_S) == -signal.SIGTERM, "or it would start the worker again"


def test_a_killed_agent_ends_the_worker(family: Family) -> None:
    family.agent.kill()
    _wait_until(lambda: _name(family.worker_pid) != "busy")
    assert family.client.poll() is None


def test_a_worker_without_a_client_of_its_own_watches_the_agent() -> None:
    agent, worker_pid = _start("none")
    agent.kill()
    agent.wait()
    _wait_until(lambda: _name(worker_pid) != "busy")


def test_a_client_that_was_gone_before_ends_the_worker_at_once() -> None:
    client = subprocess.Popen(["true"])
    client.wait()
    agent = subprocess.Popen([sys.executable, "-c", _AGENT, str(client.pid), _WORKER])
    assert agent.wait(GONE_S) == -signal.SIGTERM


def _name(pid: int) -> str:
    """Of a living process; "" when it is gone."""
    try:
        with open(f"/proc/{pid}/status") as status:
            values = {name: value.strip() for name, _, value in (s.partition(":") for s in status)}
    except OSError:
        return ""
    return "" if values["State"].startswith("Z") else values["Name"]


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GONE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
