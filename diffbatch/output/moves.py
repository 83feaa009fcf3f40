"""Renames inside a run folder that survive a crash at any point, swaps and cycles included.

Everything first goes to `.moving/`, then to its place; a journal says which of the two is under
way, so that opening the folder again can finish it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from diffbatch.output.atomic import sync_folder, write_atomic
from diffbatch.output.layout import MOVES

_JOURNAL = "journal.json"
_STAGE, _PLACE = "stage", "place"

Triples = list[tuple[str, str, str]]  # from, in `.moving/`, to; all relative to the run folder


def staging_folder(root: Path) -> Path:
    """A folder for new files that `move_all` puts into place together with the moves."""
    folder = root / MOVES
    folder.mkdir(exist_ok=True)
    return folder


def move_all(root: Path, moves: Iterable[tuple[str, str]], staged: Iterable[str] = ()) -> None:
    """Move files (from, to), paths relative to `root`, and each `staged` new file to its place.

    `staged` names are final paths; their content waits in `staging_folder` under `staged_name`.
    All or nothing: after a crash `finish_moves` completes what the journal holds.
    """
    triples = [(src, f"{MOVES}/{number}", dst) for number, (src, dst) in enumerate(moves)]
    triples += [("", f"{MOVES}/{staged_name(dst)}", dst) for dst in staged]
    staging_folder(root)
    _write_journal(root, _STAGE, triples)
    _finish(root, _STAGE, triples)


def staged_name(final: str) -> str:
    """The name in the staging folder of a new file for `final`."""
    return f"new-{final.replace('/', '-')}"


def finish_moves(root: Path) -> None:
    """Complete the moves that a crash interrupted; without a journal there are none."""
    if not (root / MOVES).is_dir():
        return
    journal = root / MOVES / _JOURNAL
    if journal.exists():
        data = json.loads(journal.read_bytes())
        _finish(root, data["phase"], [(src, temp, dst) for src, temp, dst in data["moves"]])
    else:
        _remove_staging(root)


def _finish(root: Path, phase: str, triples: Triples) -> None:
    if phase == _STAGE:
        for src, temp, _ in triples:
            if src and not (root / temp).exists() and (root / src).exists():
                (root / src).rename(root / temp)
        _write_journal(root, _PLACE, triples)
    for _, temp, dst in triples:
        if (root / temp).exists():
            (root / dst).parent.mkdir(parents=True, exist_ok=True)
            (root / temp).rename(root / dst)
    for folder in {(root / dst).parent for _, _, dst in triples}:
        sync_folder(folder)
    _remove_empty(root, {src for src, _, _ in triples if "/" in src})
    _remove_staging(root)


def _write_journal(root: Path, phase: str, triples: Triples) -> None:
    text = json.dumps({"phase": phase, "moves": triples})
    write_atomic(root / MOVES / _JOURNAL, [text.encode()])


def _remove_staging(root: Path) -> None:
    """Journal first: without one, what remains here is unfinished new files, never an output."""
    (root / MOVES / _JOURNAL).unlink(missing_ok=True)
    for path in (root / MOVES).iterdir():
        path.unlink()
    (root / MOVES).rmdir()


def _remove_empty(root: Path, sources: set[str]) -> None:
    """Remove the sub-folders that the moves have left empty."""
    for src in sources:
        for folder in (root / src).parents:
            if folder == root or not folder.is_dir() or any(folder.iterdir()):
                break
            folder.rmdir()
