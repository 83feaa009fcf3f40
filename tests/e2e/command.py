"""The real command in a subprocess, and what it leaves: files, records, processes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 150.0  # of one command; generous, for busy machines
GONE_S = 30.0  # after which a killed run may have left no process

# What depends on when, where and in which process a request was made.
_VOLATILE = ("stage_s", "peak_memory_bytes", "replica", "ranks", "attempt")


def environment() -> dict[str, str]:
    """This process's, without what a launcher or another test may have put there."""
    dropped = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "TORCHELASTIC", "COLUMNS", "FORCE_COLOR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    path = [str(ROOT), *filter(None, [kept.get("PYTHONPATH")])]
    more = {"PYTHONPATH": os.pathsep.join(path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return {**kept, **more}


def start(*arguments: object) -> subprocess.Popen[str]:
    """`diffbatch ARGUMENTS` in the background."""
    return subprocess.Popen(
        [sys.executable, "-m", "diffbatch", *map(str, arguments)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=_hear_signals,
    )


def _hear_signals() -> None:
    """In the child: tests may run where a shell's `&` or nohup has signals ignored."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


def finish(process: subprocess.Popen[str]) -> Ended:
    """Wait for the command; one that hangs is killed and fails the test."""
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"no end after {TIMEOUT_S:g} s:\n{out}\n{err}") from None
    return Ended(process.returncode, out, err)


def run(*arguments: object, code: int = 0) -> Ended:
    """`diffbatch ARGUMENTS` to its end, which must be `code`."""
    ended = finish(start(*arguments))
    assert ended.code == code, f"exit code {ended.code}:\n{ended.out}\n{ended.err}"
    return ended


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A command in the background that does not survive the `with` block."""
    process = start(*arguments)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = TIMEOUT_S) -> Any:
    """The first true value of `condition`, which is asked again and again."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"no {what} within {timeout_s:g} s"
        time.sleep(0.02)
    return found


def records(folder: Path) -> list[dict[str, Any]]:
    """Every whole record of the folder, merged or not, as the files hold them."""
    found = []
    for path in [folder / "manifest.jsonl", *sorted((folder / "manifest").glob("*.jsonl"))]:
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
            found += [json.loads(line) for line in lines if line.endswith(b"\n")]
    return found


def num_recorded(folder: Path) -> int:
    """Requests that have a record."""
    return len({record["id"] for record in records(folder)})


def wait_for_more_records(folder: Path, more: int, process: subprocess.Popen[str]) -> None:
    """Wait until `more` requests than now have a record; the command must not end before."""
    num = num_recorded(folder) + more

    def there() -> bool:
        assert process.poll() is None, f"ended early: {process.communicate()}"
        return num_recorded(folder) >= num

    wait_until(there, f"{more} more records")


def workers(folder: Path) -> dict[int, int]:
    """Rank -> process id of the workers of a run, as their process names say."""
    found = {}
    for pid in processes(folder):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        if name.startswith("diffbatch-r"):
            found[int(name.removeprefix("diffbatch-r"))] = pid
    return found


def processes(folder: Path) -> dict[int, bytes]:
    """Process id -> command line of every living process that names `folder` in it."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                arguments = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in arguments:
                found[int(entry.name)] = arguments
    return found


def assert_all_gone(folder: Path) -> None:
    """No process that belongs to `folder` is left after at most `GONE_S`."""
    wait_until(lambda: not processes(folder), f"end of {processes(folder)}", GONE_S)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def contents(folder: Path) -> dict[str, Any]:
    """The folder file by file: pictures as bytes, the manifest without what may differ.

    Logs and run.json tell of the run, not of its results; everything else must be equal.
    """
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith("logs/") and name != "run.json":
            found[name] = _lines(path) if name == "manifest.jsonl" else path.read_bytes()
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in line.items() if k not in _VOLATILE} for line in lines]


def hashes(folder: Path) -> dict[str, str]:
    """Id -> sha256, as the manifest says."""
    return {record["id"]: record["sha256"] for record in records(folder)}


def pictures(folder: Path) -> dict[str, str]:
    """File name -> sha256 of every picture that is there."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.glob("*.png")}
