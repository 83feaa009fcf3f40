"""Workers without a model, for scale.py: all of a run but torchrun, the pixels and the fsync.

python benchmarks/simulated.py run JOB --json: `diffbatch run` whose workers are these. Every
replica has a process with the real Leader, GPUWorker and Board on a real TCPStore, rank 0 the real
Scheduler too; what they "make" is recorded at once. They are forks of one process that has imported
torch and, as torchrun does, holds the store: so dozens fit into memory.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from diffbatch.launch.torchrun import Torchrun
from diffbatch.output.layout import PARTS
from diffbatch.output.manifest import record_line
from diffbatch.req import MicroBatch, OutputBatch, Record
from diffbatch.worker.spec import WorkerSpec

_STAGE_S = {"text_encoding": 0.20845, "denoising": 1.75676, "decoding": 0.07528, "save": 0.0195}


class SimulatedTorchrun(Torchrun):
    """Starts this script in the place of torchrun."""

    def __init__(
        self,
        arguments: list[str],
        *,
        num_ranks: int,
        max_restarts: int,
        environment: Mapping[str, str],
        log_path: Path,
    ) -> None:
        self._log_path, self._log_begin = log_path, 0
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "work", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
                start_new_session=True,
            )


class InstantExecutor:
    """Whatever is admitted is finished in the next turn."""

    steps = (0, 0)

    def __init__(self) -> None:
        import torch

        from diffbatch.parallel.wire import Waiting
        from diffbatch.pipeline.clock import StageLedger

        self._flights: list[tuple[str, MicroBatch]] = []
        self.ledger = StageLedger(torch.device("cpu"), Waiting())

    @property
    def num_in_flight(self) -> int:
        return len(self._flights)

    num_stepping = num_in_flight

    def admit(self, batches: Sequence[tuple[str, MicroBatch]]) -> None:
        self._flights += batches

    def turn(self) -> Any:
        from diffbatch.pipeline.flight import Finished, Turn

        flights, self._flights = self._flights, []
        return Turn(finished=[Finished(key=k, batch=b, output=_output(b)) for k, b in flights])

    def drop(self, keys: Sequence[str]) -> None:
        self._flights = [flight for flight in self._flights if flight[0] not in keys]

    def flush(self) -> None:
        pass


def _output(batch: MicroBatch) -> OutputBatch:
    num = len(batch.reqs)
    return OutputBatch(reqs=batch.reqs, frames=(None,) * num, errors=(None,) * num)


class RecordingSink:
    """Appends a record for each output to the rank's part of the manifest, and posts it."""

    def __init__(self, root: Path, board: Any, replica: int) -> None:
        self._part = (root / PARTS / f"rank-{replica}.jsonl").open("ab", buffering=0)
        self._board, self._replica = board, replica

    def put(self, batch: OutputBatch, write: Collection[str], keep_frames: bool) -> None:
        for req in batch.reqs:
            record = Record(
                id=req.id,
                index=req.index,
                status="ok",
                file=req.file,
                prompt=req.prompt,
                seed=req.seed,
                params=req.params.as_dict(),
                sha256="0123456789abcdef" * 4,
                bytes=5000,
                replica=self._replica,
                ranks=(self._replica,),
                stage_s=_STAGE_S,
            )
            self._part.write(record_line(record))
            event = {"event": "record", "replica": self._replica, "record": record.as_dict()}
            self._board.post(event)

    def close(self) -> None:
        self._part.close()


def work(spec: WorkerSpec) -> None:
    """Fork one leader per replica, then hold the store until all have ended."""
    import torch.distributed as dist

    import diffbatch.worker.orders  # noqa: F401 brings torch and diffusers: once, not in each fork
    from diffbatch.worker.lifeline import hold_lifeline

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(spec.layout.replicas):
        pid = os.fork()  # before anything here has a thread
        if pid == 0:
            hold_lifeline(spec.parent_pid)
            lead(spec, rank, dist.TCPStore("127.0.0.1", port, is_master=False))
            os._exit(0)
        ranks.append(pid)
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    for pid in ranks:
        os.waitpid(pid, 0)
    del store


def lead(spec: WorkerSpec, rank: int, store: Any) -> None:
    """What `worker.rank` does on the leader of a replica of one rank."""
    from diffbatch.worker.board import Board
    from diffbatch.worker.bridge import Bridge
    from diffbatch.worker.gpu_worker import GPUWorker
    from diffbatch.worker.link import connect
    from diffbatch.worker.orders import Leader
    from diffbatch.worker.scheduler import Scheduler

    board = Board(store, 0)
    store.add("here", 1)
    while store.add("here", 0) < spec.layout.replicas:  # so that all claim from the start
        time.sleep(0.1)
    thread = None
    if rank == 0:
        assert spec.link is not None
        thread = Scheduler(connect(spec.link), board.clone(), spec.layout.replicas).start()
    executor: Any = InstantExecutor()
    bridge = Bridge(SimpleNamespace(size=1, notes=None))  # type: ignore[arg-type]
    sink = RecordingSink(spec.run_folder, board.clone(), rank)
    orders = Leader(executor, board, bridge, sink, replica=rank, in_flight=spec.flights)
    board.post({"event": "ready", "rank": rank, "replica": rank, "device": "none", "load": {}})
    times = GPUWorker(executor, bridge, sink, lambda: 0.0).run(orders)
    board.post({"event": "rank", "rank": rank, "replica": rank, **times})
    board.post({"event": "left", "rank": rank, "replica": rank})
    if thread is not None:
        thread.join()


def main() -> None:
    if sys.argv[1] == "work":
        work(WorkerSpec.from_json(sys.argv[2]))
        return
    from diffbatch.cli.main import main as diffbatch
    from diffbatch.launch import group

    group.Torchrun = SimulatedTorchrun
    try:
        diffbatch()
    finally:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s, peak_mb = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
        print(json.dumps({"event": "parent", "cpu_s": cpu_s, "peak_mb": peak_mb}))


if __name__ == "__main__":
    main()
