"""Start torchrun for one group of workers, and end it for certain."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from diffbatch.launch.devices import num_gpus

_SHUTDOWN_S = 10  # torchrun: from SIGTERM to SIGKILL of its workers
_FORKING = "diffbatch.worker.agent"
_EXIT_CODE = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")


def _can_fork() -> bool:
    """Neither CUDA nor the frameworks of macOS survive a fork."""
    return sys.platform == "linux" and num_gpus() == 0


class Torchrun:
    """One torchrun on this host, in a session of its own.

    CPU ranks are forks of it, made after the imports (`worker/agent.py`); GPU ranks are processes
    of their own, as CUDA needs them.

    A session of its own keeps the terminal's Ctrl-C away from the workers: the parent decides how
    they end. Standalone rendezvous picks a free port, so runs on one host never clash.
    """

    def __init__(
        self,
        arguments: list[str],
        *,
        num_ranks: int,
        max_restarts: int,
        environment: Mapping[str, str],
        log_path: Path,
    ) -> None:
        self._log_path = log_path
        command = [
            *(sys.executable, "-m", _FORKING if _can_fork() else "torch.distributed.run"),
            # What --standalone means, spelt out.
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "local"),
            *("--nproc-per-node", str(num_ranks), "--max-restarts", str(max_restarts)),
            *("--shutdown-timeout", str(_SHUTDOWN_S), "--monitor-interval", "0.2"),
            *("-m", "diffbatch.worker.main", *arguments),
        ]
        with log_path.open("ab") as log:
            self._log_begin = log.tell()  # what earlier runs wrote is before it
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def ended(self) -> bool:
        """Whether torchrun is gone."""
        return self._process.poll() is not None

    def wait(self, timeout_s: float) -> bool:
        """Whether torchrun ended by itself within `timeout_s`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.ended

    def kill(self) -> None:
        """SIGTERM, and SIGKILL when that does not help. The workers' lifelines end them too."""
        if not self.ended:
            self._process.terminate()
            if not self.wait(_SHUTDOWN_S + 5):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def cause(self) -> str:
        """How the first worker to fail ended, as torchrun's log tells it; "" when it does not."""
        with self._log_path.open("rb") as log:
            log.seek(self._log_begin)
            text = log.read().decode(errors="replace")
        found = _EXIT_CODE.search(text)
        if found is None:
            return ""
        code, rank = int(found[1]), found[2]
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return f"the worker of local rank {rank} {how}"
