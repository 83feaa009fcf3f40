"""One run per folder at a time: an exclusive lock whose file says who holds it."""

from __future__ import annotations

import json
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path

from diffbatch.errors import RunFolderError
from diffbatch.log import get_logger
from diffbatch.output.layout import LOCK, PARTS
from diffbatch.output.part import try_lock

logger = get_logger(__name__)

_POLL_S = 0.2


class FolderLock:
    """Holds `<root>/.lock`. The kernel drops the lock when the process ends, however it ends.

    The lock is flock's: between hosts it works on local disks' exports over NFS 4 and on Lustre
    mounted with `-o flock`; on a mount that keeps locks local, each host sees only its own runs.
    """

    def __init__(self, root: Path, command: str) -> None:
        self._path = root / LOCK
        self._file = _open_locked(self._path)
        holder = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command,
        }
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps(holder).encode(), 0)

    def release(self) -> None:
        """Remove the file while still holding it, then let go."""
        if self._file >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1

    def moved_to(self, root: Path) -> None:
        """The folder was renamed with the lock in it."""
        self._path = root / LOCK


def wait_for_writers(root: Path, limit_s: float) -> None:
    """Wait until no process appends to a part of the manifest.

    The workers of a killed run may live some seconds longer than the process that held the lock.
    """
    deadline = time.monotonic() + limit_s
    told = False
    for part in sorted((root / PARTS).glob("*.jsonl")):
        while _is_held(part):
            if time.monotonic() > deadline:
                raise RunFolderError(
                    f"{root} is still written to by a worker of an earlier run (it holds {part}); "
                    "end that process or choose another output"
                )
            if not told:
                logger.warning("waiting for the last workers of an earlier run in %s to end", root)
                told = True
            time.sleep(_POLL_S)


def _open_locked(path: Path) -> int:
    """Open and lock `path`; again if its last holder removed it between the two."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not try_lock(file):
            message = f"{path.parent} is in use by another run: {_holder(file)}"
            os.close(file)
            raise RunFolderError(f"{message}; wait for it to end or choose another output")
        try:
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        except FileNotFoundError:
            pass
        os.close(file)


def _holder(file: int) -> str:
    try:
        holder = json.loads(os.pread(file, 1 << 16, 0))
        who = f"pid {holder['pid']} on {holder['host']} since {holder['since']}"
        return f"{who} ({holder['command']})" if holder["command"] else who
    except (ValueError, KeyError, TypeError):  # it has the lock and has not signed yet
        return "one that has just started"


def _is_held(part: Path) -> bool:
    file = os.open(part, os.O_RDWR)
    try:
        return not try_lock(file)
    finally:
        os.close(file)
