from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from diffbatch.errors import RunFolderError
from diffbatch.output.manifest import merge, read_heads, read_manifest, record_line
from diffbatch.output.part import ManifestPart
from diffbatch.req import Record
from tests.unit.output_helpers import HARD_PROMPT, make_req


def make_record(index: int = 0, *, attempt: int = 0, status: str = "ok", **more: object) -> Record:
    req = make_req(index, f"prompt {index}")
    record = Record(
        id=req.id,
        index=index,
        status=status,
        file=req.file,
        prompt=req.prompt,
        seed=req.seed,
        params=req.params.as_dict(),
        attempt=attempt,
        ranks=(0, 1),
    )
    return replace(record, **more)


def append(root: Path, writer: str, *records: Record) -> Path:
    part = ManifestPart(root, writer)
    for record in records:
        part.append(record)
    part.close()
    return part.path


def test_records_round_trip(tmp_path: Path) -> None:
    record = make_record(prompt=HARD_PROMPT, stage_s={"denoise": 1.5}, sha256="a" * 64, bytes=3)
    append(tmp_path, "replica-0", record)
    assert read_manifest(tmp_path) == {record.id: record}
    line = (tmp_path / "manifest/replica-0.jsonl").read_bytes()
    assert line.count(b"\n") == 1
    assert "一只猫 🌟".encode() in line


def test_half_a_surrogate_pair_in_an_error_is_still_a_valid_line() -> None:
    assert json.loads(record_line(make_record(error="bad \ud83d")))["error"] == "bad \ud83d"


def test_heads_are_the_first_fields_of_the_records(tmp_path: Path) -> None:
    append(tmp_path, "rank-0", make_record(0, bytes=3), make_record(1, error="bad \ud83d"))
    records, heads = read_manifest(tmp_path), read_heads(tmp_path)
    assert list(heads) == list(records)
    for req_id, head in heads.items():
        assert asdict(head).items() <= asdict(records[req_id]).items()
    assert heads[make_record(1).id].error == "bad \ud83d"


def test_no_manifest_is_an_empty_one(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) == {}


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        ({"attempt": 0, "status": "failed"}, {"attempt": 1, "status": "ok"}, 1),
        ({"attempt": 1, "status": "failed"}, {"attempt": 0, "status": "ok"}, 0),
        ({"attempt": 0, "status": "ok"}, {"attempt": 0, "status": "failed"}, 0),
        ({"attempt": 0, "status": "ok"}, {"attempt": 0, "status": "ok"}, 1),
    ],
)
@pytest.mark.parametrize("writers", [("replica-0", "replica-0"), ("replica-0", "replica-1")])
def test_which_record_of_an_id_counts(
    tmp_path: Path, first: dict, second: dict, winner: int, writers: tuple[str, str]
) -> None:
    records = [make_record(**first, replica=0), make_record(**second, replica=1)]
    for writer, record in zip(writers, records, strict=True):
        append(tmp_path, writer, record)
    assert read_manifest(tmp_path)[records[0].id].replica == winner


def test_a_part_beats_the_merged_manifest(tmp_path: Path) -> None:
    append(tmp_path, "replica-0", make_record(attempt=3))
    merge(tmp_path)
    append(tmp_path, "replica-0", make_record(attempt=0, status="failed"))
    assert [r.status for r in read_manifest(tmp_path).values()] == ["failed"]


def test_merge_writes_job_order_and_removes_the_parts(tmp_path: Path) -> None:
    records = [make_record(i) for i in range(4)]
    append(tmp_path, "replica-1", records[3], records[0])
    append(tmp_path, "replica-0", records[2], records[1])
    order = {records[i].id: position for position, i in enumerate((2, 0, 3))}
    merged = merge(tmp_path, order)
    lines = [json.loads(line) for line in (tmp_path / "manifest.jsonl").open("rb")]
    assert [line["id"] for line in lines] == [records[i].id for i in (2, 0, 3, 1)]
    assert [line["index"] for line in lines] == [0, 1, 2, 1]
    assert not list((tmp_path / "manifest").iterdir())
    assert read_manifest(tmp_path) == merged


@pytest.mark.parametrize("torn", [b'{"id": "abc", "ind', b"\0\0\0", b"{", b'"\xe7'])
def test_a_torn_last_line_is_not_a_record(tmp_path: Path, torn: bytes) -> None:
    path = append(tmp_path, "replica-0", make_record(0), make_record(1))
    path.write_bytes(path.read_bytes() + torn)
    assert len(read_manifest(tmp_path)) == 2
    append(tmp_path, "replica-0", make_record(2))
    assert len(read_manifest(tmp_path)) == 3


@pytest.mark.parametrize("bad", [b"not json\n", b"[1, 2]\n", b'{"id": "x"}\n', b'{"id": \n', b"\n"])
def test_any_other_bad_line_is_an_error_with_its_place(tmp_path: Path, bad: bytes) -> None:
    path = append(tmp_path, "replica-0", make_record(0))
    path.write_bytes(path.read_bytes() + bad + record_line(make_record(1)))
    with pytest.raises(RunFolderError, match=f"^{re.escape(str(path))}:2: not a manifest record"):
        read_manifest(tmp_path)


def test_fields_of_a_newer_version_are_left_out(tmp_path: Path) -> None:
    data = json.loads(record_line(make_record()))
    (tmp_path / "manifest.jsonl").write_text(json.dumps({**data, "colour": "red"}) + "\n")
    assert list(read_manifest(tmp_path).values()) == [make_record()]


def test_one_process_per_writer_name(tmp_path: Path) -> None:
    part = ManifestPart(tmp_path, "replica-0")
    with pytest.raises(RunFolderError, match="another process writes"):
        ManifestPart(tmp_path, "replica-0")
    part.close()
    ManifestPart(tmp_path, "replica-0").close()


def test_a_short_write_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = ManifestPart(tmp_path, "replica-0")
    part.append(make_record(0))
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    with pytest.raises(OSError, match="No space left"):
        part.append(make_record(1))
    monkeypatch.undo()
    part.append(make_record(2))
    part.close()
    assert [record.index for record in read_manifest(tmp_path).values()] == [0, 2]
