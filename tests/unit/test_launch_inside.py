"""`diffbatch run` as one rank of a torchrun that somebody else started."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from diffbatch.errors import PlanError
from diffbatch.job.overrides import CommandLine
from diffbatch.launch.inside import _OVER, _feed, inside_torchrun, run_inside
from diffbatch.launch.prepare import Machine, prepare
from diffbatch.launch.run import RunChoices
from diffbatch.worker.link import Message, QueueLink, queue_link_pair
from tests.unit.model_kit import make_model
from tests.unit.test_launch_feed import batches_of

RANK = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


@pytest.fixture
def far() -> Iterator[QueueLink]:
    """The Scheduler's end; the client's thread is at the other one."""
    near, far = queue_link_pair()
    notes: list[Message] = []

    def note(event: Message) -> None:
        if event["event"] == "bad":
            raise OSError("stdout is gone")
        notes.append(event)

    def client() -> None:
        try:
            _feed(near, batches_of(1, 2), note)
        except OSError:
            notes.append({"event": "client failed"})

    thread = threading.Thread(target=client)
    thread.start()
    yield far
    near.inbox.put(_OVER)
    thread.join(10)
    assert not thread.is_alive()


def _submitted(link: QueueLink) -> list[str]:
    messages = [link.receive(5.0) for _ in range(2)]
    return [req_id for m in messages if m for req_id in m["batch"]["write"]]


def test_the_client_closes_when_every_record_is_in(far: QueueLink) -> None:
    *ids, last = _submitted(far)
    for req_id in ids:
        far.send({"event": "record", "record": {"id": req_id}})
    assert far.receive(0.5) is None
    far.send({"event": "record", "record": {"id": last}})
    assert far.receive(5.0) == {"op": "close"}
    assert far.receive(0.5) is None, "only once"


def test_a_client_that_fails_stops_the_workers(far: QueueLink) -> None:
    _submitted(far)
    far.send({"event": "bad"})
    assert far.receive(5.0) == {"op": "stop"}


def test_torchrun_is_known_by_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RANK:
        monkeypatch.delenv(name, raising=False)
    assert not inside_torchrun()
    monkeypatch.setenv("RANK", "0")
    assert not inside_torchrun(), "a variable of that name alone says nothing"
    for name, value in RANK.items():
        monkeypatch.setenv(name, value)
    assert inside_torchrun()


def test_another_number_of_replicas_than_processes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in RANK.items():
        monkeypatch.setenv(name, value)
    keys = {"model": str(make_model(tmp_path / "m")), "output": str(tmp_path / "out")}
    command_line = CommandLine(keys={**keys, "parallel.replicas": 3})
    prepared = prepare(None, ["a cat"], command_line)
    with pytest.raises(PlanError, match=r"2 processes do not fit replicas 3 .* start 3 proc"):
        run_inside(prepared, RunChoices(), Console())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (Machine(devices="0,1"), "torchrun has placed the ranks already"),
        (Machine(memory_gb=1e-9), "rank 0 of a replica needs"),
    ],
)
def test_devices_and_too_little_memory_are_refused_inside_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine, message: str
) -> None:
    for name, value in RANK.items():
        monkeypatch.setenv(name, value)
    keys = {"model": str(make_model(tmp_path / "m")), "output": str(tmp_path / "out")}
    prepared = prepare(None, ["a cat"], CommandLine(keys=keys), machine)
    with pytest.raises(PlanError, match=message):
        run_inside(prepared, RunChoices(), Console())
    assert not (tmp_path / "out").exists()
