from __future__ import annotations

from dataclasses import replace

import pytest

from diffbatch.errors import JobError
from diffbatch.output.resume import compare, select
from diffbatch.req import Record, Req
from tests.unit.output_helpers import make_req


def ok(req: Req, size: int = 10) -> Record:
    return Record(
        id=req.id,
        index=req.index,
        status="ok",
        file=req.file,
        prompt=req.prompt,
        seed=req.seed,
        params={},
        bytes=size,
    )


def state(*records: Record) -> tuple[dict[str, Record], dict[str, int]]:
    """Records by id, and every ok record's file with the recorded size."""
    sizes = {r.file: r.bytes or 0 for r in records if r.status == "ok"}
    return {record.id: record for record in records}, sizes


REQS = [make_req(i, f"prompt {name}") for i, name in enumerate(["a", "b", "c", "d"])]
A, B, C, D = REQS


def test_an_empty_folder_has_everything_to_do() -> None:
    resume = compare(REQS, {}, {})
    assert resume.pending == {req.id for req in REQS}
    assert (resume.done, resume.failed, resume.records) == (frozenset(), frozenset(), ())


def test_nothing_to_do_changes_nothing() -> None:
    records, sizes = state(*map(ok, REQS))
    resume = compare(REQS, records, sizes)
    assert not resume.pending
    assert (resume.renames, resume.retire, resume.foreign) == ((), (), ())
    assert resume.records == tuple(records.values())


def test_a_missing_a_cut_and_an_empty_file_are_made_again() -> None:
    records, sizes = state(*map(ok, REQS))
    del sizes[A.file]
    sizes[B.file] = 5
    sizes[C.file] = 0
    resume = compare(REQS, records, sizes)
    assert resume.done == {D.id}
    assert resume.retire == (B.file, C.file)
    assert [record.id for record in resume.records] == [D.id]


def test_failed_stays_failed_unless_asked() -> None:
    records, sizes = state(ok(A), replace(ok(B), status="failed", error="non-finite"))
    resume = compare([A, B], records, sizes)
    assert (resume.done, resume.failed, resume.pending) == ({A.id}, {B.id}, frozenset())
    resume = compare([A, B], records, sizes, retry_failed=True)
    assert (resume.done, resume.failed, resume.pending) == ({A.id}, frozenset(), {B.id})
    assert len(resume.records) == 2  # until it is made, the manifest says that it failed


def test_what_could_not_be_saved_is_tried_again_by_any_rerun() -> None:
    records, sizes = state(replace(ok(A), status="failed", error="not saved: No space left"))
    assert compare([A], records, sizes).pending == {A.id}


def test_an_inserted_prompt_renames_the_files_behind_it() -> None:
    records, sizes = state(ok(A), ok(B))
    new = make_req(1, "prompt x")
    moved = replace(B, index=2, file="00002-b-7.png")
    resume = compare([A, new, moved], records, sizes)
    assert resume.pending == {new.id}
    assert resume.renames == ((B.file, moved.file),)
    assert resume.records == (ok(A), ok(moved))
    assert resume.retire == ()


def test_a_removed_prompt_retires_its_file() -> None:
    records, sizes = state(ok(A), ok(B))
    resume = compare([A], records, sizes)
    assert resume.retire == (B.file,)
    assert resume.retired_records == (ok(B),)
    assert resume.records == (ok(A),)


def test_another_format_is_made_again() -> None:
    records, sizes = state(ok(A))
    resume = compare([replace(A, file="00000-a-7.jpg")], records, sizes)
    assert resume.pending == {A.id}
    assert resume.retire == (A.file,)


def test_a_file_that_no_record_knows() -> None:
    sizes = {A.file: 10, "notes.txt": 3}
    assert compare([A], {}, sizes, owned=False).foreign == (A.file,)
    owned = compare([A], {}, sizes)
    assert (owned.foreign, owned.retire, owned.pending) == ((), (A.file,), {A.id})


def test_two_records_that_claim_one_file_are_both_doubted() -> None:
    records, sizes = state(ok(A), replace(ok(B), file=A.file))
    resume = compare([A, B], records, sizes)
    assert resume.pending == {A.id, B.id}
    assert resume.retire == (A.file,)


@pytest.mark.parametrize(
    ("limit", "only", "expected"),
    [
        (None, [], "abcd"),
        (2, [], "ab"),
        (0, [], ""),
        (9, [], "abcd"),
        (None, ["prompt B"], "b"),
        (None, ["*-c-*.png", "prompt a"], "ac"),
        (1, ["prompt [cd]"], "c"),
        (None, ["*"], "abcd"),
        (None, ["c-7"], "c"),
        (None, [A.id], "a"),
    ],
)
def test_select(limit: int | None, only: list[str], expected: str) -> None:
    chosen = select(REQS, limit=limit, only=only)
    assert chosen == {req.id for req in REQS if req.prompt[-1] in expected}


def test_patterns_that_match_nothing_are_an_error() -> None:
    with pytest.raises(JobError) as caught:
        select(REQS, only=["zebra", "*.gif"])
    said = str(caught.value)
    assert said.startswith("--only: no request matches 'zebra' or '*.gif'; ")
    assert repr(REQS[0].file) in said
    assert select([], only=["zebra"]) == frozenset(), "an empty job has nothing to match"


def test_select_takes_brackets_of_a_prompt_as_text_too() -> None:
    req = make_req(0, "a cat [masterpiece]")
    assert select([req], only=["[masterpiece]"]) == {req.id}
