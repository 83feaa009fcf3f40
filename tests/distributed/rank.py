"""One rank of a `RankPool`: imports torch once, then answers calls until told to stop."""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import Store

STOP = b""
_HOST = "127.0.0.1"
_PRELOAD = ("torch", "torch.distributed", "diffusers.models.modeling_utils")
_GROUP_TIMEOUT = timedelta(seconds=120)


@dataclass(frozen=True, slots=True)
class Success:
    """What the function returned on this rank."""

    value: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """How this rank failed; `at` is on the clock that all processes share."""

    message: str
    at: float


def serve(rank: int, world_size: int, connection: Connection, stack_file: str) -> None:
    """Main function of a rank's process. SIGUSR1 writes its stack to `stack_file`."""
    os.environ |= {"OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size)}
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with open(stack_file, "w", encoding="utf-8") as stack:
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
        for module in _PRELOAD:
            importlib.import_module(module)
        store = _join_store(rank, world_size, connection)
        connection.send_bytes(pickle.dumps(Success(None)))
        num_calls = 0
        while (call := _next_call(connection)) != STOP:
            num_calls += 1
            connection.send_bytes(_answer(call, f"call-{num_calls}", store, rank, world_size))


def _next_call(connection: Connection) -> bytes:
    try:
        return connection.recv_bytes()
    except EOFError:  # the pool's process is gone
        return STOP


def _join_store(rank: int, world_size: int, connection: Connection) -> Store:
    """Rank 0 opens the store on a port that the system picks, so no two groups can clash."""
    import torch
    from torch.distributed import TCPStore

    torch.set_num_threads(1)
    port = 0 if rank == 0 else int(connection.recv_bytes())
    store = TCPStore(_HOST, port, world_size, rank == 0, _GROUP_TIMEOUT, wait_for_workers=False)
    if rank == 0:
        connection.send_bytes(str(store.port).encode())
    os.environ |= {"MASTER_ADDR": _HOST, "MASTER_PORT": str(store.port)}
    return store


def _answer(call: bytes, name: str, store: Store, rank: int, world_size: int) -> bytes:
    """Run one call in a fresh process group; tensors in the result are copied, not shared."""
    import torch
    from torch import distributed

    try:
        if distributed.is_initialized():  # of the last call, which every rank has finished
            distributed.destroy_process_group()
        distributed.init_process_group(
            "gloo",
            store=distributed.PrefixStore(name, store),
            rank=rank,
            world_size=world_size,
            timeout=_GROUP_TIMEOUT,
        )
        torch.manual_seed(0)
        fn, args = pickle.loads(call)
        return pickle.dumps(Success(fn(*args)))
    except Exception as error:  # noqa: BLE001  carried to the test, which raises it
        message = f"raised {type(error).__name__}: {error}\n{traceback.format_exc()}"
        return pickle.dumps(Failure(message, at=time.monotonic()))
