"""Where tests find the tiny checkpoints: built once per machine, shared by all test processes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path

_SCRIPTS = Path(__file__).parent.parent / "scripts"
_BUILD_TIMEOUT_S = 180


@cache
def tiny_checkpoint(name: str) -> Path:
    """Folder of checkpoint `name` (wan, wan22, sd3, flux). Shared: copy it before changing it."""
    parent = Path(tempfile.gettempdir()) / f"diffbatch-tiny-{os.getuid()}" / _key()
    folder = parent / name
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _build(name, folder)
    return folder


def _build(name: str, folder: Path) -> None:
    unfinished = folder.parent / "unfinished"
    shutil.rmtree(unfinished / name, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "tiny_checkpoints", str(unfinished), name],
        env={**os.environ, "PYTHONPATH": str(_SCRIPTS), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"tiny checkpoint {name!r} could not be built:\n{done.stderr}")
    (unfinished / name).rename(folder)


def _key() -> str:
    """Changes when the generator or a library that writes the files changes."""
    digest = hashlib.sha256()
    for path in sorted((_SCRIPTS / "tiny_checkpoints").glob("*.py")):
        digest.update(path.read_bytes())
    for library in ("torch", "diffusers", "transformers"):
        digest.update(version(library).encode())
    return digest.hexdigest()[:16]
