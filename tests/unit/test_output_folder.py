from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from diffbatch.errors import EXIT_USAGE, RunFolderError
from diffbatch.output import moves
from diffbatch.output.folder import RunFolder, look
from diffbatch.output.manifest import read_manifest
from diffbatch.output.part import ManifestPart
from diffbatch.output.writer import OutputWriter
from diffbatch.req import Record, Req
from tests.unit.output_helpers import batch_of, config, files_in, make_req, run_job


def job(*names: str) -> list[Req]:
    return [make_req(i, f"prompt {name}", f"{i:02d}-{name}.png") for i, name in enumerate(names)]


def check_like_new(root: Path, reqs: list[Req], fresh_root: Path) -> None:
    """The folder equals one that the job filled in one go, and the manifest says so."""
    run_job(fresh_root, reqs)
    here = {n: data for n, data in files_in(root).items() if not n.startswith("retired/")}
    assert here == files_in(fresh_root)
    records = list(read_manifest(root).values())
    assert [(r.id, r.index, r.file) for r in records] == [(q.id, q.index, q.file) for q in reqs]
    assert all(record.status == "ok" for record in records)


def test_a_whole_run_leaves_files_and_books_only(tmp_path: Path) -> None:
    reqs = job("a", "b")
    resume = run_job(tmp_path / "run", reqs)
    assert resume.pending == {req.id for req in reqs}
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"manifest.jsonl", "manifest", "00-a.png", "01-b.png"}


def test_a_rerun_has_nothing_to_do_and_touches_nothing(tmp_path: Path) -> None:
    reqs = job("a", "b")
    run_job(tmp_path, reqs)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    with RunFolder(tmp_path) as folder:
        assert not folder.reconcile(reqs).pending
        assert list(folder.merge(reqs)) == [req.id for req in reqs]
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert before == after


def test_a_rerun_brings_the_manifest_back_into_job_order(tmp_path: Path) -> None:
    reqs = job("a", "b", "c")
    run_job(tmp_path, reqs)
    manifest = tmp_path / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(reversed(lines)))
    with RunFolder(tmp_path) as folder:
        assert not folder.reconcile(reqs).pending
    assert manifest.read_bytes() == b"".join(lines)


def test_a_deleted_file_and_an_edited_prompt_are_the_only_work(tmp_path: Path) -> None:
    root = tmp_path / "run"
    run_job(root, job("a", "b", "c"))
    old = files_in(root)
    (root / "00-a.png").unlink()
    reqs = job("a", "b", "x")
    resume = run_job(root, reqs)
    assert resume.pending == {reqs[0].id, reqs[2].id}
    assert files_in(root)["00-a.png"] == old["00-a.png"]
    assert files_in(root)["retired/02-c.png"] == old["02-c.png"]
    check_like_new(root, reqs, tmp_path / "new")
    line = json.loads((root / "retired/manifest.jsonl").read_text())
    assert (line["prompt"], line["file"]) == ("prompt c", "retired/02-c.png")


def test_half_and_empty_files_are_made_again(tmp_path: Path) -> None:
    root = tmp_path / "run"
    reqs = job("a", "b", "c")
    run_job(root, reqs)
    (root / "00-a.png").write_bytes((root / "00-a.png").read_bytes()[:100])
    (root / "01-b.png").write_bytes(b"")
    assert run_job(root, reqs).pending == {reqs[0].id, reqs[1].id}
    check_like_new(root, reqs, tmp_path / "new")


@pytest.mark.parametrize(
    ("before", "after", "num_made"),
    [
        ("abc", "bac", 0),  # swap
        ("abcd", "bcda", 0),  # cycle
        ("abc", "xabc", 1),  # insert: every index behind it shifts
        ("abc", "bc", 0),  # remove
        ("abcd", "dxab", 1),
        ("abc", "xyz", 3),
    ],
)
def test_done_files_follow_their_prompts(
    tmp_path: Path, before: str, after: str, num_made: int
) -> None:
    root = tmp_path / "run"
    # Names without the prompt: every file keeps its name and changes its meaning.
    first = [replace(req, file=f"{req.index}/{req.index:02d}.png") for req in job(*before)]
    second = [replace(req, file=f"{req.index}/{req.index:02d}.png") for req in job(*after)]
    run_job(root, first)
    old = files_in(root)
    resume = run_job(root, second)
    assert len(resume.pending) == num_made
    check_like_new(root, second, tmp_path / "new")
    assert set(old.values()) <= set(files_in(root).values())  # nothing that was made is lost
    assert not (root / ".moving").exists()


def test_a_crash_at_any_rename_is_completed_at_the_next_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [replace(req, file=f"{req.index:02d}.png") for req in job(*"abcd")]
    second = [replace(req, file=f"{req.index:02d}.png") for req in job(*"bcax")]
    run_job(tmp_path / "new", second)
    expected = files_in(tmp_path / "new")
    real = Path.rename
    for crash_at in range(1, 12):
        root = tmp_path / f"run-{crash_at}"
        run_job(root, first)
        count = 0

        def rename(path: Path, target: Path) -> Path:
            nonlocal count
            count += 1
            if count == crash_at:  # noqa: B023 - used within this turn of the loop
                raise KeyboardInterrupt
            return real(path, target)

        monkeypatch.setattr(moves.Path, "rename", rename)
        with RunFolder(root) as folder:
            try:
                folder.reconcile(second)
                crashed = False
            except KeyboardInterrupt:
                crashed = True
        monkeypatch.undo()
        resume = run_job(root, second)
        assert len(resume.pending) == 1, crash_at
        files = files_in(root)
        assert {n: d for n, d in files.items() if not n.startswith("retired/")} == expected
        retired = [name for name in files if name.startswith("retired/")]
        assert retired == ["retired/03.png", "retired/manifest.jsonl"]
        if not crashed:
            assert crash_at > 10
            return
    raise AssertionError("the moves did not end")


def test_retired_files_never_replace_each_other(tmp_path: Path) -> None:
    for name in "abc":
        run_job(tmp_path, [make_req(0, f"prompt {name}", "one.png")])
    retired = {name for name in files_in(tmp_path) if name.startswith("retired/")}
    assert retired == {"retired/one.png", "retired/one.1.png", "retired/manifest.jsonl"}
    assert (tmp_path / "retired/manifest.jsonl").read_bytes().count(b"\n") == 2


def test_a_folder_with_other_things_is_used_and_they_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".tmp-mine").write_text("mine too")
    run_job(tmp_path, job("a"))
    run_job(tmp_path, job("b"))
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / ".tmp-mine").read_text() == "mine too"


def test_a_file_of_the_user_is_never_overwritten(tmp_path: Path) -> None:
    reqs = job(*(f"p{i}" for i in range(15)))
    for req in reqs[:12]:
        (tmp_path / req.file).write_text("mine")
    with RunFolder(tmp_path) as folder, pytest.raises(RunFolderError) as caught:
        folder.reconcile(reqs)
    assert caught.value.exit_code == EXIT_USAGE
    assert len(caught.value.problems) == 11
    assert str(tmp_path / "00-p0.png") in str(caught.value)
    assert "and 2 more" in str(caught.value)
    assert len(list(tmp_path.iterdir())) == 12  # refused, and nothing is left behind
    assert look(tmp_path, reqs).foreign


def test_fresh_moves_the_old_run_aside_and_never_deletes(tmp_path: Path) -> None:
    root = tmp_path / "run"
    reqs = job("a", "b")
    run_job(root, reqs)
    old = files_in(root)
    for number in (1, 2):
        with RunFolder(root, fresh=True) as folder:
            assert folder.moved_aside == tmp_path / f"run.old-{number}"
            assert folder.reconcile(reqs).pending == {req.id for req in reqs}
        assert files_in(tmp_path / f"run.old-{number}") == (old if number == 1 else {})
    assert not list(tmp_path.rglob(".lock"))


def test_fresh_does_not_move_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/photo.png").write_text("mine")
    with RunFolder(tmp_path / "run", fresh=True) as folder:
        assert folder.moved_aside is None
    assert (tmp_path / "run/photo.png").exists()


def test_fresh_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk/run").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "disk/run")
    run_job(tmp_path / "link", job("a"))
    with RunFolder(tmp_path / "link", fresh=True):
        pass
    assert (tmp_path / "disk/run.old-1/00-a.png").exists()
    assert (tmp_path / "link").is_symlink()


def test_a_second_run_is_refused_with_who_holds_the_folder(tmp_path: Path) -> None:
    command = "diffbatch run jobs/promo.yaml"
    with RunFolder(tmp_path, command=command):
        with pytest.raises(RunFolderError) as caught:
            RunFolder(tmp_path)
        text = str(caught.value)
        assert f"pid {os.getpid()} on {os.uname().nodename} since 20" in text
        assert command in text
        assert caught.value.exit_code == EXIT_USAGE
    RunFolder(tmp_path).close()
    assert not (tmp_path / ".lock").exists()


def test_the_lock_of_a_killed_run_does_not_hold(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal; from pathlib import Path;"
        "from diffbatch.output.folder import RunFolder;"
        "RunFolder(Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / ".lock").exists()
    RunFolder(tmp_path).close()


def test_workers_that_outlive_their_parent_are_waited_for(tmp_path: Path) -> None:
    run_job(tmp_path, job("a"))
    part = ManifestPart(tmp_path, "replica-0")
    with pytest.raises(RunFolderError, match="still written to by a worker"):
        RunFolder(tmp_path, wait_s=0.3)
    threading.Timer(0.5, part.close).start()
    RunFolder(tmp_path, wait_s=30).close()


def test_stray_temporaries_are_removed(tmp_path: Path) -> None:
    run_job(tmp_path, job("a"))
    (tmp_path / ".tmp-replica-0-123-4.png").write_bytes(b"half")
    (tmp_path / ".tmp-replica-0-123-5.mp4.meta").write_bytes(b"tags")
    run_job(tmp_path, job("a"))
    assert list(files_in(tmp_path)) == ["00-a.png"]


def test_parts_of_a_killed_run_are_taken_in(tmp_path: Path) -> None:
    reqs = job("a", "b")
    with RunFolder(tmp_path) as folder:
        folder.reconcile(reqs)
        part = ManifestPart(tmp_path, "replica-0")
        part.append(make_failed(reqs[0]))
        part.close()
    with (tmp_path / "manifest/replica-0.jsonl").open("ab") as file:
        file.write(b'{"id": "to')
    with RunFolder(tmp_path) as folder:
        resume = folder.reconcile(reqs)
        assert (resume.failed, resume.pending) == ({reqs[0].id}, {reqs[1].id})
    assert not list((tmp_path / "manifest").iterdir())


def make_failed(req: Req):

    return Record(
        id=req.id,
        index=req.index,
        status="failed",
        file=req.file,
        prompt=req.prompt,
        seed=req.seed,
        params=req.params.as_dict(),
        error="non-finite pixels",
    )


def test_look_changes_nothing(tmp_path: Path) -> None:
    reqs = job("a", "b")
    assert look(tmp_path / "none", reqs).pending == {req.id for req in reqs}
    assert not (tmp_path / "none").exists()
    root = tmp_path / "run"
    run_job(root, reqs)
    before = sorted(path.stat().st_mtime_ns for path in root.rglob("*"))
    resume = look(root, job("b"))
    assert (resume.done, resume.renames) == ({reqs[1].id}, (("01-b.png", "00-b.png"),))
    assert sorted(path.stat().st_mtime_ns for path in root.rglob("*")) == before


def test_run_facts_are_whole_sorted_and_versioned(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as folder:
        folder.write_facts({"name": "猫", "command": "x"})
        folder.write_facts({"name": "猫", "command": "y"})
    text = (tmp_path / "run.json").read_text(encoding="utf-8")
    assert "猫" in text
    assert list(json.loads(text)) == ["command", "name", "schema_version"]
    assert json.loads(text)["schema_version"] == 1


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("x")
    with pytest.raises(RunFolderError, match=r"cannot use .*run as run folder"):
        RunFolder(tmp_path / "run")
    assert (tmp_path / "run").read_text() == "x"
    (tmp_path / "sub").write_text("x")
    with RunFolder(tmp_path) as folder, pytest.raises(RunFolderError, match="need a folder here"):
        folder.reconcile([make_req(file="sub/a.png")])


def test_two_replicas_write_one_manifest(tmp_path: Path) -> None:
    reqs = job(*"abcdef")
    with RunFolder(tmp_path) as folder:
        folder.reconcile(reqs)
        with (
            OutputWriter(config(tmp_path, "replica-0")) as one,
            OutputWriter(config(tmp_path, "replica-1", replica=1)) as two,
        ):
            for k, req in enumerate(reversed(reqs)):
                (one, two)[k % 2].put(batch_of([req]))
        assert [r.id for r in folder.merge(reqs).values()] == [req.id for req in reqs]
    assert len(files_in(tmp_path)) == 6


def test_one_more_call_into_the_same_folder_keeps_what_is_there(tmp_path: Path) -> None:
    first = [make_req(0, "prompt a", "0-a.png"), make_req(1, "prompt b", "1.png")]
    second = [make_req(0, "prompt x", "0-x.png"), make_req(1, "prompt y", "1.png")]
    run_job(tmp_path, first)
    resume = run_job(tmp_path, second, keep_others=True)
    assert len(resume.pending) == 2
    assert set(files_in(tmp_path)) == {
        "0-a.png",
        "0-x.png",
        "1.png",
        "retired/1.png",
        "retired/manifest.jsonl",
    }
    files = [record.file for record in read_manifest(tmp_path).values()]
    assert files == ["0-x.png", "1.png", "0-a.png"]
