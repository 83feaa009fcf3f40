"""The run folder: opened and locked by one run, brought in line with its job, merged at the end.

Nothing that was made is ever deleted: what a job no longer asks for goes to `retired/`, and a fresh
start moves the whole folder aside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from diffbatch.errors import Problem, RunFolderError
from diffbatch.output.atomic import write_atomic
from diffbatch.output.layout import (
    FACTS,
    FRAMES,
    MANIFEST,
    PARTS,
    RETIRED,
    is_run_folder,
    is_temp,
)
from diffbatch.output.lock import FolderLock, wait_for_writers
from diffbatch.output.manifest import (
    has_parts,
    merge,
    read_heads,
    read_manifest,
    read_records,
    write_manifest,
)
from diffbatch.output.moves import finish_moves, move_all, staged_name, staging_folder
from diffbatch.output.part import ManifestPart
from diffbatch.output.resume import Resume, compare
from diffbatch.req import RecordHead, Req

SCHEMA_VERSION = 1
_MAX_LISTED = 10


class RunFolder:
    """An open run folder; `close` it, or use it as a context manager.

    `owned`: an earlier run left its state here. `moved_aside`: where a fresh start put that run.
    """

    def __init__(
        self, path: Path, *, command: str = "", fresh: bool = False, wait_s: float = 35.0
    ) -> None:
        """Create or open, lock, and repair what a crash left.

        `command` is shown to whoever is refused meanwhile. `wait_s` is how long the last workers of
        a killed run may take to end.
        """
        # A link is followed: a fresh start moves the folder itself, not the link to it.
        self.root = path.resolve()
        self.moved_aside: Path | None = None
        with _folder_errors(path):
            self._open(command, fresh, wait_s)

    def _open(self, command: str, fresh: bool, wait_s: float) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock = FolderLock(self.root, command)
        try:
            self.owned = is_run_folder(self.root)
            if self.owned:
                wait_for_writers(self.root, wait_s)
                finish_moves(self.root)
                _take_in_parts(self.root)
            if fresh and self.owned:
                self._move_aside(command)
            self.records: Mapping[str, RecordHead] = read_heads(self.root)
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the folder go."""
        self._lock.release()

    def reconcile(
        self, reqs: Sequence[Req], *, retry_failed: bool = False, keep_others: bool = False
    ) -> Resume:
        """Bring the folder in line with `reqs`, which is the whole job, and say what is to do.

        Files of ours are renamed or retired, the manifest holds what is true now, left-over
        temporaries are gone. Refuses to touch a file that is not ours. Only while no writer lives.
        `keep_others`: `reqs` is not the whole job, but one more call into the same folder.
        """
        sizes, temps = _scan(self.root, reqs, self.records)
        resume = compare(
            reqs,
            self.records,
            sizes,
            retry_failed=retry_failed,
            owned=self.owned,
            keep_others=keep_others,
        )
        if resume.foreign:
            raise RunFolderError(foreign_problems(self.root, resume.foreign))
        with _folder_errors(self.root):
            for temp in temps:
                temp.unlink(missing_ok=True)
            (self.root / PARTS).mkdir(exist_ok=True)
            self.owned = True
            self._carry_out(resume)
        return resume

    def merge(self, reqs: Sequence[Req]) -> Mapping[str, RecordHead]:
        """Merge the parts into manifest.jsonl, in job order, when all writers have ended.

        Without parts no worker has written since `reconcile`, which left the manifest as it is.
        """
        with _folder_errors(self.root):
            if (self.root / MANIFEST).exists() and not has_parts(self.root):
                return self.records
            self.records = merge(self.root, {req.id: req.index for req in reqs})
            # A killed worker's ffmpeg may have finished its temporary file after `reconcile`.
            for temp in _scan(self.root, reqs, self.records)[1]:
                temp.unlink(missing_ok=True)
        return self.records

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        """Replace run.json by `facts`, whole or not at all."""
        text = json.dumps(
            {"schema_version": SCHEMA_VERSION, **facts},
            indent=2,
            ensure_ascii=False,
            sort_keys=True,
        )
        write_atomic(self.root / FACTS, [text.encode(), b"\n"])

    def _carry_out(self, resume: Resume) -> None:
        """Moves and manifests change together: a crash leaves the state before or after."""
        records = {record.id: record for record in resume.records}
        same = [*records.values()] == [*self.records.values()]  # in the same order, too
        if same and not (resume.renames or resume.retire):
            return
        retired = self._retired_names(resume.retire)
        staged = [MANIFEST]
        folder = staging_folder(self.root)
        old = read_manifest(self.root)
        now = (replace(old[head.id], index=head.index, file=head.file) for head in resume.records)
        write_manifest(folder / staged_name(MANIFEST), now)
        if resume.retired_records:
            final = f"{RETIRED}/{MANIFEST}"
            before = read_records(self.root / final)
            new = (
                replace(old[head.id], file=retired[head.file]) for head in resume.retired_records
            )
            write_manifest(folder / staged_name(final), [*before, *new])
            staged.append(final)
        move_all(self.root, [*resume.renames, *retired.items()], staged)
        self.records = records

    def _move_aside(self, command: str) -> None:
        number = 1
        while (target := self.root.with_name(f"{self.root.name}.old-{number}")).exists():
            number += 1
        self.root.rename(target)
        self._lock.moved_to(target)
        self._lock.release()
        self.root.mkdir()
        self._lock = FolderLock(self.root, command)
        self.moved_aside = target
        self.owned = False

    def _retired_names(self, files: Sequence[str]) -> dict[str, str]:
        """A free name below `retired/` for each file."""
        names: dict[str, str] = {}
        taken: set[str] = set()
        for file in files:
            stem, dot, suffix = file.rpartition(".")
            candidate, number = f"{RETIRED}/{file}", 0
            while candidate in taken or (self.root / candidate).exists():
                number += 1
                candidate = f"{RETIRED}/{stem}.{number}{dot}{suffix}"
            names[file] = candidate
            taken.add(candidate)
        return names


def look(path: Path, reqs: Sequence[Req], *, retry_failed: bool = False) -> Resume:
    """What a run would find to do in the folder at `path`: changes nothing, takes no lock."""
    records = read_heads(path)
    sizes, _ = _scan(path, reqs, records)
    owned = is_run_folder(path)
    return compare(reqs, records, sizes, retry_failed=retry_failed, owned=owned)


def foreign_problems(root: Path, files: Sequence[str]) -> list[Problem]:
    """One problem per file that an output would overwrite though no run of ours made it."""
    problems = [
        Problem(
            str(root / file),
            "this file is not from diffbatch, and the job would overwrite it; "
            "choose another output folder or file name template, or move the file",
        )
        for file in files[:_MAX_LISTED]
    ]
    if len(files) > _MAX_LISTED:
        problems.append(Problem(str(root), f"and {len(files) - _MAX_LISTED} more such files"))
    return problems


@contextmanager
def _folder_errors(path: Path) -> Iterator[None]:
    """A folder that cannot be read or written is the user's to mend: a message, no traceback."""
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror} ({error.filename})" if error.filename else error.strerror
        raise RunFolderError(f"cannot use {path} as run folder: {reason}") from error


def _take_in_parts(root: Path) -> None:
    """Merge what the writers of a killed run left, also a file that only lacked its record."""
    for announced in (root / PARTS).glob("*.next"):
        ManifestPart(root, announced.stem).close()
    if has_parts(root):
        merge(root)


def _scan(
    root: Path, reqs: Iterable[Req], records: Mapping[str, RecordHead]
) -> tuple[dict[str, int], list[Path]]:
    """Sizes by relative name, and stray temporaries, of the folders that outputs live in.

    Only those: a run folder may lie in a tree of other things.
    """
    folders = {req.file.rpartition("/")[0] for req in reqs}
    folders |= {record.file.rpartition("/")[0] for record in records.values()}
    sizes: dict[str, int] = {}
    temps: list[Path] = []
    for folder in folders | {FRAMES}:
        try:
            entries = os.scandir(root / folder)
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            raise RunFolderError(
                "this is a file, and the job's file names need a folder here",
                place=f"{root}/{folder}",
            ) from None
        with entries:
            for entry in entries:
                if is_temp(entry.name):
                    temps.append(Path(entry.path))
                elif entry.is_file():
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    sizes[name] = entry.stat().st_size
    return sizes, temps
