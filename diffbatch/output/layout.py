"""The names inside a run folder, and which of them belong to diffbatch. Pure."""

from __future__ import annotations

import re
from pathlib import Path

FACTS = "run.json"
MANIFEST = "manifest.jsonl"
PARTS = "manifest"  # folder: one part per writer
LOGS = "logs"
PROFILE = "profile"  # folder: one trace per rank
RETIRED = "retired"  # folder: files that the job no longer asks for
FRAMES = "frames"  # folder: raw frames, on request
GALLERY = "gallery.html"
LOCK = ".lock"
MOVES = ".moving"  # folder: a reconciliation in progress

RESERVED = frozenset({FACTS, MANIFEST, PARTS, LOGS, PROFILE, RETIRED, FRAMES, GALLERY, LOCK, MOVES})

# In a failed record: the request was made but not saved, so any rerun tries again.
NOT_SAVED = "not saved: "

_TEMP_PREFIX = ".tmp-"
_TEMP = re.compile(r"\.tmp-.+-\d+-\d+\.\w+(\.meta)?")


def is_reserved(file: str) -> bool:
    """True when an output of this name (relative, `/` between folders) would hit one of ours."""
    if file.partition("/")[0].lower() in RESERVED:
        return True
    return _TEMP_PREFIX in file and any(p.startswith(_TEMP_PREFIX) for p in file.split("/"))


def is_run_folder(root: Path) -> bool:
    """True when an earlier run left its state here."""
    return any((root / name).exists() for name in (MANIFEST, PARTS, FACTS))


def temp_name(writer: str, pid: int, number: int, suffix: str) -> str:
    """Unique over the writers of a folder, on any host; not made from the final name, whose
    length may already be the longest that the file system takes."""
    return f"{_TEMP_PREFIX}{writer}-{pid}-{number}.{suffix}"


def is_temp(name: str) -> bool:
    """True for names from `temp_name`, and ffmpeg's tags beside one."""
    return name.startswith(_TEMP_PREFIX) and _TEMP.fullmatch(name) is not None


def frames_file(req_id: str) -> str:
    """Where `keep_frames` puts the raw frames of a Req, relative to the run folder."""
    return f"{FRAMES}/{req_id}.npy"


def trace_file(rank: int) -> str:
    """Where a rank of a profiled run puts its trace, relative to the run folder."""
    return f"{PROFILE}/rank-{rank}.json.gz"


def traces(root: Path) -> list[Path]:
    """The traces in a run folder, by rank."""
    found = (root / PROFILE).glob("rank-*.json.gz")
    return sorted(found, key=lambda path: (len(path.name), path.name))
