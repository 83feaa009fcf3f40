"""One writer's part of the manifest: appended line by line, each on the device before the next."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from diffbatch.errors import RunFolderError
from diffbatch.output.atomic import sync_folder
from diffbatch.output.layout import PARTS
from diffbatch.output.manifest import record_line, recover_announced
from diffbatch.req import Record


class ManifestPart:
    """`manifest/<writer>.jsonl`, held by one process at a time.

    Opening it again (a restarted worker) removes a torn last line, and appends the record of a file
    that had its final name when the process died.
    """

    def __init__(self, root: Path, writer: str) -> None:
        self.path = root / PARTS / f"{writer}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        if not try_lock(self._file):
            os.close(self._file)
            raise RunFolderError(
                f"another process writes {self.path}; a writer name belongs to one process"
            )
        _drop_torn_line(self._file)
        sync_folder(self.path.parent)
        recovered = recover_announced(root, self.path)
        if recovered is not None:
            self.append(recovered)

    def announce(self, record: Record) -> None:
        """Note the record whose file gets its final name next; see `recover_announced`."""
        self.path.with_suffix(".next").write_bytes(record_line(record))

    def append(self, record: Record) -> None:
        """Add one line, whole or not at all, and bring it to the device."""
        line = record_line(record)
        before = os.fstat(self._file).st_size
        written = os.write(self._file, line)
        if written != len(line):
            os.ftruncate(self._file, before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        os.fsync(self._file)

    def close(self) -> None:
        """Let the file go. What was announced has been appended or never got its name."""
        self.path.with_suffix(".next").unlink(missing_ok=True)
        os.close(self._file)


def try_lock(descriptor: int) -> bool:
    """Take the exclusive lock of an open file, without waiting; it ends with the process.

    On a file system without locks (some Lustre mounts) this counts as taken.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK):
            raise
    return True


def _drop_torn_line(descriptor: int) -> None:
    """Cut the file behind its last newline."""
    size = os.fstat(descriptor).st_size
    keep, step = size, 1 << 16
    while keep > 0:
        start = max(0, keep - step)
        newline = os.pread(descriptor, keep - start, start).rfind(b"\n")
        if newline >= 0:
            keep = start + newline + 1
            break
        keep = start
    if keep != size:
        os.ftruncate(descriptor, keep)
