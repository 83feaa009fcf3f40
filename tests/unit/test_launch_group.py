"""WorkerGroup against a pretend torchrun: feeding, restarts, and every way the workers can end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import pytest

from diffbatch.errors import PlanError, WorkerError
from diffbatch.launch import group as group_module
from diffbatch.launch.group import WorkerGroup
from diffbatch.launch.torchrun import Torchrun
from diffbatch.plan.layout import Layout
from diffbatch.worker.link import KEY_VARIABLE, Message, SocketLink
from diffbatch.worker.spec import WorkerSpec
from tests.unit.test_launch_feed import batches_of

pytestmark = pytest.mark.timeout(60)


class FakeTorchrun:
    """What the group sees of torchrun; `connect` plays the worker of rank 0."""

    def __init__(self, arguments: list[str], *, environment: dict[str, str], **more: Any) -> None:
        self.spec = WorkerSpec.from_json(arguments[0])
        self.key = bytes.fromhex(environment[KEY_VARIABLE])
        self.more = more
        self.ended = False
        self.killed = False

    def connect(self) -> SocketLink:
        assert self.spec.link is not None
        return SocketLink(Client(self.spec.link, authkey=self.key))

    def wait(self, _timeout_s: float) -> bool:
        return self.ended

    def kill(self) -> None:
        self.ended = self.killed = True

    def cause(self) -> str:
        return "the worker of local rank 0 was killed by signal 9"


@contextmanager
def started(tmp_path: Path) -> Iterator[tuple[WorkerGroup, FakeTorchrun]]:
    spec = WorkerSpec(
        model_folder=Path("/m"), model_label="m", run_folder=tmp_path, layout=Layout(replicas=2)
    )
    group = WorkerGroup(spec, max_restarts=1)
    fake = group._torchrun
    assert isinstance(fake, FakeTorchrun)
    try:
        yield group, fake
    finally:
        group.abort()


@pytest.fixture(autouse=True)
def _no_real_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "Torchrun", FakeTorchrun)
    monkeypatch.setattr(group_module, "_TURN_S", 0.02)


def record_of(req_id: str) -> Message:
    return {"event": "record", "record": {"id": req_id, "status": "ok"}}


def serve(link: SocketLink, num: int) -> list[list[str]]:
    """Take `num` micro-batches; returns the ids that each was to write."""
    found = []
    for _ in range(num):
        message = link.receive(5.0)
        assert message is not None
        assert message["op"] == "submit"
        found.append(message["batch"]["write"])
    return found


def test_workers_get_their_spec_on_the_command_line_and_the_key_only_in_the_environment(
    tmp_path: Path,
) -> None:
    with started(tmp_path) as (group, fake):
        assert fake.more["num_ranks"] == 2
        assert fake.key.hex() not in fake.spec.to_json()
        assert fake.spec.parent_pid is not None
        assert group is not None


def test_work_goes_out_when_the_scheduler_connects_and_ends_with_the_last_record(
    tmp_path: Path,
) -> None:
    batches = batches_of(1, 2)
    with started(tmp_path) as (group, fake):
        events = group.make(batches)
        link = fake.connect()
        assert next(events)["event"] == "connected"
        link.send({"event": "ready"})
        assert next(events)["event"] == "ready"
        ids = [req_id for write in serve(link, 2) for req_id in write]
        assert sorted(ids) == sorted(req.id for batch in batches for req in batch.reqs)
        for req_id in ids:
            link.send(record_of(req_id))
        assert [event["event"] for event in events] == ["record"] * 3


def test_until_ready_waits_for_every_rank_and_again_after_a_restart(tmp_path: Path) -> None:
    with started(tmp_path) as (group, fake):
        events = group.until_ready()
        first = fake.connect()
        first.send({"event": "ready", "rank": 0})
        assert [next(events)["event"] for _ in range(2)] == ["connected", "ready"]
        first._connection.close()
        assert next(events)["event"] == "disconnected"
        second = fake.connect()
        for rank in range(2):
            second.send({"event": "ready", "rank": rank})
        assert [event["event"] for event in events] == ["connected", "ready", "ready"]
        assert list(group.until_ready()) == []


def test_nothing_to_make_needs_no_worker(tmp_path: Path) -> None:
    with started(tmp_path) as (group, _):
        assert list(group.make([])) == []


def test_after_a_restart_the_new_scheduler_gets_what_has_no_record(tmp_path: Path) -> None:
    batches = batches_of(2, 1)
    with started(tmp_path) as (group, fake):
        events = group.make(batches)
        first = fake.connect()
        next(events)
        first.send({"event": "ready"})
        next(events)
        [one, _], [_] = serve(first, 2)
        first.send(record_of(one))
        next(events)
        first._connection.close()
        assert next(events)["event"] == "disconnected"
        second = fake.connect()
        assert next(events)["event"] == "connected"
        second.send({"event": "ready"})
        next(events)
        left = [req_id for write in serve(second, 2) for req_id in write]
        assert len(left) == 2
        assert one not in left


@pytest.mark.parametrize("rude", ["hangs up", "wrong key"])
def test_a_caller_that_fails_the_handshake_does_not_keep_the_workers_out(
    tmp_path: Path, rude: str
) -> None:
    """Such as a worker that was killed while it connected."""
    with started(tmp_path) as (group, fake):
        assert fake.spec.link is not None
        if rude == "hangs up":
            caller = socket.socket(socket.AF_UNIX)
            caller.connect(fake.spec.link)
            caller.close()
        else:
            with pytest.raises(Exception, match=r"digest|rejected"):
                Client(fake.spec.link, authkey=b"guess")
        link = fake.connect()
        assert next(group.make(batches_of(1)))["event"] == "connected"
        link.send({"event": "ready"})


def test_workers_that_are_gone_raise_with_the_cause(tmp_path: Path) -> None:
    with started(tmp_path) as (group, fake):
        fake.ended = True
        with pytest.raises(WorkerError, match=r"local rank 0 was killed by signal 9.*goes on from"):
            list(group.make(batches_of(1)))


@pytest.mark.parametrize(("code", "kind"), [(2, PlanError), (1, WorkerError)])
def test_a_fatal_error_of_a_rank_is_told_and_ends_the_group(
    tmp_path: Path, code: int, kind: type[Exception]
) -> None:
    with started(tmp_path) as (group, fake):
        events = group.make(batches_of(1))
        link = fake.connect()
        next(events)
        link.send({"event": "fatal", "rank": 1, "error": "vae does not load", "exit_code": code})
        with pytest.raises(kind, match=r"^vae does not load$"):
            next(events)
        assert fake.killed


def test_a_stop_ends_the_call_and_is_passed_on(tmp_path: Path) -> None:
    with started(tmp_path) as (group, fake):
        events = group.make(batches_of(1))
        link = fake.connect()
        next(events)
        group.stop()
        assert [event["event"] for event in events] == ["stopped"]
        group.end()
        messages = [link.receive(1.0) for _ in range(1)]
        assert {"op": "stop"} in messages
        assert fake.killed


def test_a_stop_before_any_worker_is_there_ends_at_once(tmp_path: Path) -> None:
    with started(tmp_path) as (group, fake):
        group.stop()
        assert [event["event"] for event in group.make(batches_of(1))] == ["stopped"]
        assert group.end() == []
        assert fake.killed


FAILURE = "W1129 failed (exitcode: {code}) local_rank: {rank} (pid: 7) of binary: python\n"


def make_torchrun(log_path: Path, monkeypatch: pytest.MonkeyPatch) -> Torchrun:
    """One whose process ends at once."""
    monkeypatch.setattr("sys.executable", "/bin/true")
    return Torchrun([], num_ranks=1, max_restarts=0, environment={}, log_path=log_path)


@pytest.mark.parametrize(
    ("write", "cause"),
    [
        ([(-9, 1)], "the worker of local rank 1 was killed by signal 9"),
        ([(1, 0), (-15, 1)], "the worker of local rank 0 ended with code 1"),
        ([], ""),
    ],
)
def test_the_cause_is_the_first_failure_of_this_launch(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: list[tuple[int, int]],
    cause: str,
) -> None:
    log_path = tmp_path / "torchrun.log"
    log_path.write_text(FAILURE.format(code=-11, rank=5))  # of an earlier run in the same folder
    torchrun = make_torchrun(log_path, monkeypatch)
    assert torchrun.wait(10)
    with log_path.open("a") as log:
        log.writelines(FAILURE.format(code=code, rank=rank) for code, rank in write)
    assert torchrun.cause() == cause


def test_killing_what_has_ended_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchrun = make_torchrun(tmp_path / "torchrun.log", monkeypatch)
    assert torchrun.wait(10)
    torchrun.kill()
    torchrun.kill()
    assert torchrun.ended
