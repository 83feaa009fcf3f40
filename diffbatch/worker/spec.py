"""What a worker process must know: WorkerSpec from the launcher, RankEnv from torchrun."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from diffbatch.plan.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """Everything that a rank needs besides what torchrun puts in its environment."""

    model_folder: Path
    model_label: str  # written into the files' metadata
    run_folder: Path
    layout: Layout
    dtype: str = "auto"
    variant: str | None = None
    scheduler: dict[str, Any] = field(default_factory=dict)
    in_flight: int | None = None  # micro-batches between first and last step; None: see below
    partition: tuple[int, ...] | None = None  # blocks per pipeline rank; None: even
    uneven: bool = False  # some sequence does not divide by the sequence ranks
    timeout_s: float = 600.0  # for any wait of a rank for another
    profile: bool = False  # every rank takes a trace of a few turns
    threads: int | None = None  # per rank, on the CPU; None leaves torch's own choice
    link: str | None = None  # where the Scheduler finds the client; None: the client is rank 0
    parent_pid: int | None = None  # the client's process, on the host of rank 0

    @property
    def flights(self) -> int:
        """Micro-batches in flight per replica: one more than pipeline ranks, if not given."""
        if self.in_flight is not None:
            return self.in_flight
        return self.layout.pp + 1 if self.layout.pp > 1 else 1

    def to_json(self) -> str:
        """One line of JSON; `from_json` reads it back."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> WorkerSpec:
        """The inverse of `to_json`."""
        data: dict[str, Any] = json.loads(text)
        for name in ("model_folder", "run_folder"):
            data[name] = Path(data[name])
        data["layout"] = Layout(**data["layout"])
        data["partition"] = tuple(data["partition"]) if data["partition"] else None
        return cls(**data)


@dataclass(frozen=True, slots=True)
class RankEnv:
    """What torchrun says of this process."""

    rank: int
    local_rank: int
    world_size: int
    attempt: int  # 0, then 1, 2, ... after restarts

    @classmethod
    def read(cls) -> RankEnv:
        """From the environment that torchrun sets."""
        return cls(
            rank=int(os.environ["RANK"]),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            world_size=int(os.environ["WORLD_SIZE"]),
            attempt=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )
