from __future__ import annotations

import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diffbatch.errors import WorkerError
from diffbatch.output import writer as writer_module
from diffbatch.output.folder import RunFolder
from diffbatch.output.manifest import read_manifest
from diffbatch.output.part import ManifestPart
from diffbatch.output.writer import MAX_FAILURES_IN_A_ROW, OutputWriter
from diffbatch.req import OutputBatch, Record
from tests.unit.output_helpers import batch_of, config, files_in, frames_of, make_req, run_job


def make_reqs(count: int) -> list:
    return [make_req(i, f"prompt number {i}") for i in range(count)]


def test_files_records_and_callbacks_agree(tmp_path: Path) -> None:
    reqs = make_reqs(5)
    seen: list[Record] = []
    with OutputWriter(config(tmp_path, replica=2, ranks=(4, 5), attempt=1), seen.append) as writer:
        writer.put(batch_of(reqs[:3]))
        writer.put(batch_of(reqs[3:]))
    records = read_manifest(tmp_path)
    assert seen == list(records.values())
    assert [record.id for record in seen] == [req.id for req in reqs]
    for req, record in zip(reqs, seen, strict=True):
        data = (tmp_path / req.file).read_bytes()
        assert record.status == "ok"
        assert (record.sha256, record.bytes) == (hashlib.sha256(data).hexdigest(), len(data))
        assert (record.height, record.width, record.num_frames) == (16, 16, 1)
        assert (record.replica, record.ranks, record.attempt) == (2, (4, 5), 1)
        assert set(record.stage_s) == {"denoise", "save"}
        with Image.open(tmp_path / req.file) as image:
            assert np.array_equal(np.asarray(image), frames_of(req.prompt)[0])
            assert image.text["parameters"].startswith(req.prompt)  # type: ignore[attr-defined]
    assert not [name for name in files_in(tmp_path) if ".tmp-" in name]


def test_a_failed_request_becomes_a_record_and_the_others_are_saved(tmp_path: Path) -> None:
    reqs = make_reqs(3)
    batch = replace(
        batch_of(reqs, [frames_of("a"), None, None]), errors=(None, "non-finite pixels", None)
    )
    with OutputWriter(config(tmp_path)) as writer:
        writer.put(batch)
    records = list(read_manifest(tmp_path).values())
    assert [record.status for record in records] == ["ok", "failed", "failed"]
    assert records[1].error == "non-finite pixels"
    assert "no frames" in str(records[2].error)
    assert list(files_in(tmp_path)) == [reqs[0].file]


def test_only_the_ids_to_write_are_written(tmp_path: Path) -> None:
    reqs = make_reqs(3)
    with OutputWriter(config(tmp_path)) as writer:
        writer.put(batch_of(reqs), frozenset({reqs[1].id}))
    assert list(files_in(tmp_path)) == [reqs[1].file]


def test_a_flat_frame_is_saved_and_flagged(tmp_path: Path) -> None:
    reqs = make_reqs(2)
    black = np.zeros((1, 16, 16, 3), np.uint8)
    with OutputWriter(config(tmp_path)) as writer:
        writer.put(batch_of(reqs, [black, frames_of("a")]))
    assert [record.flat for record in read_manifest(tmp_path).values()] == [True, False]
    assert len(files_in(tmp_path)) == 2


def test_sub_folders_of_the_template_are_made(tmp_path: Path) -> None:
    req = make_req(file="00000/samples/0000.mp4")
    with OutputWriter(config(tmp_path)) as writer:
        writer.put(batch_of([req], [frames_of("a", 5)]))
    assert list(files_in(tmp_path)) == [req.file]


def test_frames_are_kept_on_request(tmp_path: Path) -> None:
    req = make_req(file="a.mp4")
    with OutputWriter(config(tmp_path)) as writer:
        writer.put(batch_of([req], [frames_of("a", 5)]), keep_frames=True)
    assert np.array_equal(np.load(tmp_path / f"frames/{req.id}.npy"), frames_of("a", 5))


def test_saving_overlaps_the_caller_and_the_queue_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    write_media = writer_module.write_media

    def slow(*args: object) -> None:
        assert gate.wait(30)
        write_media(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(writer_module, "write_media", slow)
    reqs = make_reqs(4)
    with OutputWriter(config(tmp_path, max_queued=2)) as writer:
        for req in reqs[:3]:  # one in the thread's hands, two queued
            writer.put(batch_of([req]))
            time.sleep(0.05)
        late = threading.Thread(target=writer.put, args=(batch_of([reqs[3]]),))
        late.start()
        late.join(0.3)
        assert late.is_alive()
        gate.set()
        late.join(30)
    assert len(files_in(tmp_path)) == 4


def test_one_output_that_cannot_be_saved_does_not_stop_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reqs = make_reqs(4)
    reqs[1] = replace(reqs[1], file="x" * 300 + ".png")
    (tmp_path / reqs[2].file).mkdir()
    with OutputWriter(config(tmp_path)) as writer:
        writer.put(batch_of(reqs))
    records = list(read_manifest(tmp_path).values())
    assert [record.status for record in records] == ["ok", "failed", "failed", "ok"]
    assert records[1].error == "not saved: File name too long"
    assert records[2].error == "not saved: Is a directory"
    assert set(files_in(tmp_path)) == {reqs[0].file, reqs[3].file}


def test_many_failures_in_a_row_stop_the_writer_with_one_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer_module, "write_media", full)
    reqs = make_reqs(MAX_FAILURES_IN_A_ROW + 3)
    writer = OutputWriter(config(tmp_path))

    def put_all() -> None:
        for req in reqs:
            writer.put(batch_of([req]))
        writer.close()

    with caplog.at_level(logging.ERROR), pytest.raises(WorkerError, match="No space left"):
        put_all()
    with pytest.raises(WorkerError, match="in a row could not be saved"):
        writer.close()
    assert len(caplog.records) == 1
    assert len(read_manifest(tmp_path)) == MAX_FAILURES_IN_A_ROW
    assert not files_in(tmp_path)


def test_a_record_that_cannot_be_written_is_raised_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ManifestPart, "append", full)
    writer = OutputWriter(config(tmp_path))
    writer.put(batch_of(make_reqs(1)))
    with pytest.raises(WorkerError, match="cannot be written: No space left"):
        writer.close()


def test_an_error_of_the_callback_reaches_the_caller(tmp_path: Path) -> None:
    def broken(record: Record) -> None:
        raise RuntimeError(f"bug at {record.index}")

    with (
        pytest.raises(RuntimeError, match="bug at 0"),
        OutputWriter(config(tmp_path), broken) as writer,
    ):
        writer.put(batch_of(make_reqs(1)))


def test_an_error_of_the_caller_is_not_hidden_and_the_queue_is_saved(tmp_path: Path) -> None:
    def put_and_fail() -> None:
        with OutputWriter(config(tmp_path)) as writer:
            writer.put(batch_of(make_reqs(2)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        put_and_fail()
    assert len(read_manifest(tmp_path)) == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode != 0:
        pytest.skip(f"mounting a small tmpfs needs root: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("suffix", ["png", "mp4", "npy"])
def test_disk_full_is_said_once_and_a_rerun_completes_the_job(
    small_disk: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = small_disk / "run"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_300_000))
    num_frames = {"png": 1, "mp4": 4}.get(suffix, 2)
    reqs = [make_req(i, f"prompt {i}", f"{i:02d}.{suffix}") for i in range(20)]
    frames = {req.id: frames_of(req.prompt, num_frames, 160, 160) for req in reqs}

    def attempt() -> None:
        with RunFolder(root) as folder:
            resume = folder.reconcile(reqs)
            with OutputWriter(config(root)) as writer:
                for req in reqs:
                    writer.put(batch_of([req], [frames[req.id]]), resume.pending)
            folder.merge(reqs)

    with pytest.raises(WorkerError, match="No space left on device"):
        attempt()
    assert len(caplog.records) <= 1
    records = read_manifest(root)
    saved = {record.file for record in records.values() if record.status == "ok"}
    assert 0 < len(saved) < 20
    assert set(files_in(root)) == saved
    for record in records.values():
        if record.status == "ok":
            data = (root / record.file).read_bytes()
            assert hashlib.sha256(data).hexdigest() == record.sha256

    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    attempt()
    records = read_manifest(root)
    assert [record.status for record in records.values()] == ["ok"] * 20
    assert set(files_in(root)) == {req.file for req in reqs}


_VICTIM = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {helpers!r})
from tests.unit.output_helpers import batch_of, config, frames_of, make_req
from diffbatch.output import writer as w
from diffbatch.output.part import ManifestPart
from diffbatch.output.folder import RunFolder

root, where = Path(sys.argv[1]), sys.argv[2]
count = 0

def die_at_third(name, real):
    def call(*args):
        global count
        count += 1
        if count == 3 and where == name:
            if name == "write":
                args[0].write_bytes(b"\\x89PNG half")
            if name == "append":
                print("named", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)
    return call

if where == "write":
    w.write_media = die_at_third("write", w.write_media)
if where == "sync":
    w.sync_file = die_at_third("sync", w.sync_file)
if where == "append":
    ManifestPart.append = die_at_third("append", ManifestPart.append)
reqs = [make_req(i, f"prompt number {{i}}") for i in range(6)]
folder = RunFolder(root)
folder.reconcile(reqs)
with w.OutputWriter(config(root)) as writer:
    for req in reqs:
        writer.put(batch_of([req]))
print("not killed", flush=True)
"""


@pytest.mark.parametrize("where", ["write", "sync", "append"])
def test_kill_9_leaves_no_partial_file_and_a_rerun_equals_an_uninterrupted_run(
    tmp_path: Path, where: str
) -> None:
    reqs = make_reqs(6)
    run_job(tmp_path / "whole", reqs)
    root = tmp_path / "killed"
    code = _VICTIM.format(helpers=str(Path(__file__).parents[2]))
    victim = subprocess.run([sys.executable, "-c", code, str(root), where], check=False)
    assert victim.returncode == -signal.SIGKILL
    whole = files_in(tmp_path / "whole")
    left = {name: data for name, data in files_in(root).items() if not name.startswith(".")}
    assert left == {name: whole[name] for name in left}

    resume = run_job(root, reqs)
    # The third file had its name but no record when the writer died in `append`: it counts.
    assert len(resume.done) == (3 if where == "append" else 2)
    assert files_in(root) == whole
    assert [r.index for r in read_manifest(root).values()] == list(range(6))


def test_a_restarted_writer_records_the_file_that_its_predecessor_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise SystemError

    reqs = make_reqs(1)
    monkeypatch.setattr(ManifestPart, "append", die)
    monkeypatch.setattr(ManifestPart, "close", lambda part: os.close(part._file))
    with pytest.raises(SystemError), OutputWriter(config(tmp_path)) as writer:
        writer.put(batch_of(reqs))
    monkeypatch.undo()
    assert read_manifest(tmp_path) == {}
    OutputWriter(config(tmp_path)).close()
    assert list(read_manifest(tmp_path)) == [reqs[0].id]


def test_ffmpeg_that_fails_leaves_a_failed_record_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", "/bin/false")
    req = make_req(file="a.mp4")
    batch: OutputBatch = batch_of([req], [frames_of("a", 5)])
    with OutputWriter(config(tmp_path)) as writer:
        writer.put(batch)
    [record] = read_manifest(tmp_path).values()
    assert record.status == "failed"
    assert "ffmpeg could not write mp4" in str(record.error)
    assert not files_in(tmp_path)
