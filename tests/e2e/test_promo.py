"""A real job, from the file to the pictures: complete, the same on any layout, resumable."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.e2e import command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NUM_REQUESTS = 26
Tiny = Callable[[str], Path]


@pytest.fixture(scope="module")
def made(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The job in a folder of its own, made on two replicas; `run` is the folder's out."""
    folder = tmp_path_factory.mktemp("promo")
    shutil.copytree(command.ROOT / "jobs", folder / "jobs")
    ended = _run(folder, tiny, "--replicas", 2)
    assert f"{NUM_REQUESTS} of {NUM_REQUESTS} done, {NUM_REQUESTS} of them now" in ended.out
    assert not re.search(r"[\r\x1b]", ended.out + ended.err), "plain output has no bar"
    yield folder
    command.assert_all_gone(folder)


def _run(folder: Path, tiny: Tiny, *more: object, out: str = "out") -> command.Ended:
    job, output = folder / "jobs" / "promo.yaml", folder / out
    return command.run("run", job, "--model", tiny("wan"), "--output", output, *more)


def test_every_request_is_one_file_and_one_ok_line(made: Path) -> None:
    records = command.records(made / "out")
    assert len(records) == NUM_REQUESTS
    assert {record["status"] for record in records} == {"ok"}
    assert [record["index"] for record in records] == list(range(NUM_REQUESTS))
    assert {record["file"]: record["sha256"] for record in records} == command.pictures(
        made / "out"
    )
    facts = json.loads((made / "out" / "run.json").read_text())
    assert set(facts["devices"]) == {"0", "1"}
    assert facts["totals"] == {
        "selected": NUM_REQUESTS,
        "done": NUM_REQUESTS,
        "failed": 0,
        "made": NUM_REQUESTS,
    }


def test_a_pipeline_with_guidance_ranks_makes_the_same_files(made: Path, tiny: Tiny) -> None:
    ended = _run(made, tiny, "--replicas", 1, "--pp", 2, "--cfg", 2, out="cut")
    assert f"{NUM_REQUESTS} of {NUM_REQUESTS} done" in ended.out
    assert command.pictures(made / "cut") == command.pictures(made / "out")
    assert command.hashes(made / "cut") == command.hashes(made / "out")


def test_the_pictures_open_and_differ(made: Path) -> None:
    records = command.records(made / "out")
    for record in records:
        with Image.open(made / "out" / record["file"]) as picture:
            picture.load()
            assert picture.size == (64, 64)
            assert record["prompt"] in picture.info["parameters"]
    assert len({record["sha256"] for record in records}) == NUM_REQUESTS


def test_one_replica_makes_the_same_bytes_as_two(made: Path, tiny: Tiny) -> None:
    _run(made, tiny, "--replicas", 1, "--quiet", out="single")
    assert command.hashes(made / "single") == command.hashes(made / "out")
    assert command.contents(made / "single") == command.contents(made / "out")


def test_only_a_deleted_file_and_an_edited_prompt_are_made_again(made: Path, tiny: Tiny) -> None:
    folder = made / "again"
    shutil.copytree(made / "out", folder)
    before = {record["id"]: record for record in command.records(folder)}
    times = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.png")}
    deleted = next(r for r in before.values() if r["prompt"].startswith("a green triangle"))
    (folder / deleted["file"]).unlink()
    job = made / "jobs" / "promo.yaml"
    text = job.read_text(encoding="utf-8")
    job.write_text(text.replace("a red circle on", "a red ring on"), encoding="utf-8")
    try:
        ended = _run(made, tiny, "--replicas", 1, out="again")
    finally:
        job.write_text(text, encoding="utf-8")
    assert f"{NUM_REQUESTS} of {NUM_REQUESTS} done, 2 of them now" in ended.out
    after = {record["id"]: record for record in command.records(folder)}
    assert after[deleted["id"]]["sha256"] == deleted["sha256"]
    assert len(after) == NUM_REQUESTS
    assert len(after.keys() - before.keys()) == 1, "one prompt, one new id"
    changed = {p.name for p in folder.glob("*.png") if times.get(p.name) != p.stat().st_mtime_ns}
    assert changed == {deleted["file"], "00000-a-red-ring-on-a-white-background-0.png"}
    [edited] = [record for record in after.values() if record["id"] not in before]
    assert edited["prompt"] == "a red ring on a white background"


def test_nothing_to_do_ends_at_once_and_changes_nothing(made: Path, tiny: Tiny) -> None:
    before = command.contents(made / "out"), (made / "out" / "run.json").read_bytes()
    begin_s = time.monotonic()
    ended = _run(made, tiny, "--replicas", 2)
    assert time.monotonic() - begin_s < 5
    assert "nothing left to do" in ended.out
    assert (command.contents(made / "out"), (made / "out" / "run.json").read_bytes()) == before
