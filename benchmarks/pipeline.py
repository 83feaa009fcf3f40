"""What the ranks of one replica gain: interleaving against one in flight, and against replicas.

python benchmarks/pipeline.py [--rounds 2] [--prompts 6]: one thread per rank, a Wan transformer
that dominates. All points are measured in turn, as often as there are rounds (A B A B), because
machines are shared; ratios are of the best time of each point. Also the latency of one request
with its two guidance branches on one rank and on two. Prints a table and the busy share per rank.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkpoint import make_checkpoint

from diffbatch.job.overrides import CommandLine
from diffbatch.launch.choose import choose_layout
from diffbatch.launch.group import WorkerGroup
from diffbatch.launch.prepare import Prepared, prepare
from diffbatch.launch.run import worker_spec
from diffbatch.output.folder import RunFolder
from diffbatch.plan.batches import work_queue

_SIZE = {"height": 128, "width": 128, "num_frames": 5}


@dataclass
class Point:
    """One layout, how many requests it gets, and what was measured."""

    name: str
    parallel: dict[str, int]
    num_prompts: int
    seconds: list[float] = field(default_factory=list)
    busy: dict[int, float] = field(default_factory=dict)  # rank -> share, of the last round

    @property
    def best_s(self) -> float:
        """Seconds per request, at best."""
        return min(self.seconds) / self.num_prompts


def measure(point: Point, model: Path, folder: Path, params: dict[str, float]) -> None:
    """Launch, make one request per replica to warm up, then time the others."""
    prompts = [f"prompt number {k}" for k in range(point.num_prompts)]
    keys = {f"parallel.{axis}": degree for axis, degree in point.parallel.items()}
    keys |= {"model": str(model), "output": str(folder), "format": "npy"}
    prepared = prepare(None, prompts, CommandLine(keys=keys, params=params))
    reqs = list(prepared.reqs())
    with RunFolder(folder) as run_folder, _workers(prepared, len(reqs)) as group:
        run_folder.reconcile(reqs)
        warm = list(prepare(None, ["warm up"] * 4, CommandLine(keys=keys, params=params)).reqs())
        _time(group, prepared, warm)
        point.seconds.append(_time(group, prepared, reqs))
        for event in group.end():
            if event["event"] == "rank":
                point.busy[event["rank"]] = event["busy_s"] / event["wall_s"]


@contextmanager
def _workers(prepared: Prepared, num: int) -> Iterator[WorkerGroup]:
    with WorkerGroup(worker_spec(prepared, choose_layout(prepared, num), threads=1)) as group:
        yield group


def _time(group: WorkerGroup, prepared: Prepared, reqs: list[Any]) -> float:
    """Seconds from the first request's start to the last record."""
    queue = work_queue(reqs, {r.id for r in reqs}, batch_size=1, facts=prepared.facts)
    begin_s = 0.0
    for event in group.make(queue):
        if event["event"] == "started" and not begin_s:
            begin_s = time.perf_counter()
    return time.perf_counter() - begin_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--guidance", type=float, default=5.0, help="1 is one branch per request")
    parser.add_argument("--only", default="", help="points whose name holds this text")
    options = parser.parse_args()
    num = options.prompts
    points = [
        Point("pp 2, 1 in flight", {"replicas": 1, "pp": 2, "in_flight": 1}, num),
        Point("pp 2, 3 in flight", {"replicas": 1, "pp": 2, "in_flight": 3}, num),
        Point("pp 2, 4 in flight", {"replicas": 1, "pp": 2, "in_flight": 4}, num),
        Point("2 replicas", {"replicas": 2}, num),
        Point("1 rank, 1 request", {"replicas": 1}, 1),
        Point("cfg 2, 1 request", {"replicas": 1, "cfg": 2}, 1),
    ]
    with tempfile.TemporaryDirectory() as work:
        model = Path(work, "model")
        make_checkpoint(model, num_layers=options.layers, num_heads=options.heads)
        params = {
            **_SIZE,
            "num_inference_steps": options.steps,
            "guidance_scale": options.guidance,
        }
        chosen = [point for point in points if options.only in point.name]
        if options.guidance <= 1:
            chosen = [point for point in chosen if "cfg" not in point.parallel]
        for number in range(options.rounds):
            for at, point in enumerate(chosen):
                measure(point, model, Path(work, f"{number}-{at}"), params)
                print(f"round {number}: {point.name}: {point.seconds[-1]:.2f} s", flush=True)
    one, three, four, replicas, serial, cfg = points
    print("\n| point | s per request | busy share by rank |\n|---|---|---|")
    for point in chosen:
        busy = " ".join(f"{share:.2f}" for _, share in sorted(point.busy.items()))
        print(f"| {point.name} | {point.best_s:.2f} | {busy} |")
    if {one.name, three.name, four.name, replicas.name} <= {point.name for point in chosen}:
        best = min(three.best_s, four.best_s)
        print(f"\npp 2 interleaved against 1 in flight: {one.best_s / best:.2f}x")
        print(f"pp 2 interleaved against 2 replicas: {replicas.best_s / best:.2f}x")
    if cfg in chosen and serial in chosen:
        print(f"latency of one request, cfg 2 against 1 rank: {serial.best_s / cfg.best_s:.2f}x")


if __name__ == "__main__":
    main()
