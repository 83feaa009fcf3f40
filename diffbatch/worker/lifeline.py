"""A worker must not outlive the processes that started it, however they died."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time

_POLL_S = 1.0  # only where the kernel has no pidfd


def hold_lifeline(parent_pid: int | None) -> None:
    """End this process as soon as its torchrun agent or the process `parent_pid` is gone.

    Call once at start, before anything that takes long. Safe at any moment: files appear by
    rename and records after them, so the work in hand is all that is lost.
    """
    pids = [os.getppid()] if parent_pid is None else [os.getppid(), parent_pid]
    threading.Thread(target=_watch, args=(pids,), name="lifeline", daemon=True).start()


def _watch(pids: list[int]) -> None:
    agent_pid = pids[0]
    _wait_for_any_exit(pids)
    # An agent that is still there would start us again: tell it to end.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.getppid() == agent_pid:
            os.kill(agent_pid, signal.SIGTERM)
    os._exit(1)


def _wait_for_any_exit(pids: list[int]) -> None:
    try:
        watched = [os.pidfd_open(pid) for pid in pids]
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        while all(_alive(pid) for pid in pids):
            time.sleep(_POLL_S)
        return
    select.select(watched, [], [])  # a pidfd becomes readable when its process ends


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
