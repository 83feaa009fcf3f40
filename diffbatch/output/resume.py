"""What a rerun has to do: compares the job with the manifest and with the files that are there.

Pure. `folder.RunFolder` carries the answer out, `diffbatch plan` only prints it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from diffbatch.errors import JobError
from diffbatch.output.formats import suffix_of
from diffbatch.output.layout import NOT_SAVED
from diffbatch.req import RecordHead, Req


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Every Req of the job is in exactly one of `done`, `failed` and `pending`."""

    done: frozenset[str]  # made, and its file is there (under its name after `renames`)
    failed: frozenset[str]  # could not be made, and is not tried again
    pending: frozenset[str]  # to be made
    renames: tuple[tuple[str, str], ...]  # done files whose name changed: (from, to)
    retire: tuple[str, ...]  # files of ours that the job no longer asks for, or that were changed
    foreign: tuple[str, ...]  # files not of ours that stand where an output belongs
    records: tuple[RecordHead, ...]  # what manifest.jsonl then holds, in job order
    retired_records: tuple[RecordHead, ...]  # ok records of `retire`, under their old file names


def compare(
    reqs: Sequence[Req],
    records: Mapping[str, RecordHead],
    sizes: Mapping[str, int],
    *,
    retry_failed: bool = False,
    owned: bool = True,
    keep_others: bool = False,
) -> Resume:
    """Compare the whole job with its past.

    `sizes`: the files that are there, relative path -> bytes. A Req is done when its latest record
    is ok and the recorded file has the recorded size. `owned`: an earlier run left its state here,
    so a file under an output's name that no record knows was left by it and is set aside;
    otherwise such a file is the user's: `foreign`. `keep_others`: `reqs` is not the whole job, so
    what else was made stays, unless a Req now takes its file name.
    """
    named = Counter(record.file for record in records.values() if record.status == "ok")
    done: set[str] = set()
    failed: set[str] = set()
    pending: set[str] = set()
    in_use: set[str] = set()  # files
    renames: list[tuple[str, str]] = []
    kept: list[RecordHead] = []
    for req in reqs:
        record = records.get(req.id)
        if record is None:
            pending.add(req.id)
        elif record.status == "failed":
            again = retry_failed or (record.error or "").startswith(NOT_SAVED)
            (pending if again else failed).add(req.id)
            kept.append(_named_as(record, req))
        elif named[record.file] == 1 and _is_there(record, req, sizes):
            done.add(req.id)
            in_use.add(record.file)
            kept.append(_named_as(record, req))
            if record.file != req.file:
                renames.append((record.file, req.file))
        else:
            pending.add(req.id)
    others = _others(reqs, records, sizes) if keep_others else []
    in_use.update(record.file for record in others)
    stale = [
        record
        for record in records.values()
        if record.status == "ok" and record.file not in in_use and record.file in sizes
    ]
    retire = {record.file for record in stale}
    strangers = {req.file for req in reqs if req.file not in in_use and req.file in sizes} - retire
    return Resume(
        done=frozenset(done),
        failed=frozenset(failed),
        pending=frozenset(pending),
        renames=tuple(renames),
        retire=tuple(sorted(retire | strangers if owned else retire)),
        foreign=() if owned else tuple(sorted(strangers)),
        records=(*kept, *others),
        retired_records=tuple(stale),
    )


class Selection:
    """What `--limit` and `--only` leave of a job, asked Req by Req in the job's order.

    A pattern names a Req by its file, prompt or id: as a part of it, or with `*`, `?` and `[]`
    for the whole; upper and lower case are the same. Any of several patterns is enough, and
    `limit` counts what they leave.
    """

    def __init__(self, *, limit: int | None = None, only: Sequence[str] = ()) -> None:
        self._limit = limit
        self._only = only
        self._patterns = [pattern.casefold() for pattern in only]
        self._num = 0
        self._example: Req | None = None

    def takes(self, req: Req) -> bool:
        """Whether `req` is among those chosen, done already or not."""
        self._example = self._example or req
        if self._limit is not None and self._num >= self._limit:
            return False
        if self._patterns:
            texts = [text.casefold() for text in (req.file, req.prompt, req.id)]
            if not any(_matches(text, p) for text in texts for p in self._patterns):
                return False
        self._num += 1
        return True

    def check(self) -> None:
        """After the last Req: JobError when the patterns chose nothing, which is a slip."""
        if self._num or not self._patterns or self._example is None:
            return
        shown, example = " or ".join(repr(pattern) for pattern in self._only), self._example
        raise JobError(
            f"no request matches {shown}; a pattern is compared with file name, prompt and id, "
            f"such as {example.file!r}, {example.prompt[:40]!r} and {example.id!r}",
            place="--only",
        )


def select(
    reqs: Iterable[Req], *, limit: int | None = None, only: Sequence[str] = ()
) -> frozenset[str]:
    """The ids that a `Selection` takes. Raises JobError when `only` matches nothing."""
    selection = Selection(limit=limit, only=only)
    chosen = frozenset([req.id for req in reqs if selection.takes(req)])
    selection.check()
    return chosen


def _others(
    reqs: Sequence[Req], records: Mapping[str, RecordHead], sizes: Mapping[str, int]
) -> list[RecordHead]:
    """The records of other Reqs that are still true and whose file names are not asked for now."""
    ids = {req.id for req in reqs}
    targets = {req.file for req in reqs}
    return [
        record
        for record in records.values()
        if record.id not in ids
        and record.file not in targets
        and (record.status == "failed" or record.file in sizes)
    ]


def _is_there(record: RecordHead, req: Req, sizes: Mapping[str, int]) -> bool:
    """The recorded file exists, unchanged in size, in the format now asked for."""
    same_format = record.file == req.file or suffix_of(record.file) == suffix_of(req.file)
    return same_format and sizes.get(record.file) == record.bytes


def _named_as(record: RecordHead, req: Req) -> RecordHead:
    """The record with the index and file name that the job now gives to its Req."""
    if record.index == req.index and record.file == req.file:
        return record
    return replace(record, index=req.index, file=req.file)


def _matches(text: str, pattern: str) -> bool:
    return pattern in text or fnmatchcase(text, pattern)
