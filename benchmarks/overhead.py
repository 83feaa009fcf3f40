"""How much of the time of a replica is the transformer's forward, and what a request costs besides.

python benchmarks/overhead.py [--prompts 8 --steps 20 --heads 10]: one rank, one thread, a Wan
transformer of random weights. The run is the real one, with this process as its only rank; the
transformer's forward is timed from outside. Steady state is from the first request's start to the
last record.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from checkpoint import make_checkpoint
from diffusers import WanTransformer3DModel
from rich.console import Console

from diffbatch.job.overrides import CommandLine
from diffbatch.launch.inside import run_inside
from diffbatch.launch.prepare import prepare
from diffbatch.launch.run import RunChoices

_SIZE = {"height": 128, "width": 128, "num_frames": 5}


def time_forwards() -> list[tuple[float, float]]:
    """Let the transformer's class keep (begin, end) of every forward."""
    spans: list[tuple[float, float]] = []
    forward = WanTransformer3DModel.forward

    def timed(*args: Any, **kwargs: Any) -> Any:
        begin_s = time.time()
        try:
            return forward(*args, **kwargs)
        finally:
            spans.append((begin_s, time.time()))

    WanTransformer3DModel.forward = timed
    return spans


def be_the_only_rank() -> None:
    """What torchrun would set."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=10)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        model, output = Path(folder, "model"), Path(folder, "run")
        make_checkpoint(model, num_layers=options.layers, num_heads=options.heads)
        keys = {"model": str(model), "output": str(output), "format": "npy"}
        keys |= {"parallel.replicas": 1}
        params = {**_SIZE, "num_inference_steps": options.steps, "guidance_scale": 5.0}
        prompts = [f"prompt number {number}" for number in range(options.prompts)]
        prepared = prepare(None, prompts, CommandLine(keys=keys, params=params))
        spans = time_forwards()
        be_the_only_rank()
        told = io.StringIO()
        run_inside(prepared, RunChoices(as_json=True), Console(file=told))
    events = [json.loads(line) for line in told.getvalue().splitlines()]
    begin_s = min(event["time_s"] for event in events if event["event"] == "started")
    window_s = max(event["time_s"] for event in events if event["event"] == "record") - begin_s
    (rank,) = (event for event in events if event["event"] == "rank")
    forward_s = sum(end_s - start_s for start_s, end_s in spans)
    num_steps = options.prompts * options.steps
    print(f"a step, of two forwards: {forward_s / num_steps * 1000:.0f} ms")
    print(f"forwards: {forward_s / window_s:.1%} of the {window_s:.1f} s of steady state")
    for stage, seconds in rank["stage_s"].items():
        print(f"stage {stage}: {seconds / window_s:.1%}")
    print(f"outside of stages: {rank['overhead_s'] / options.prompts * 1000:.1f} ms a request")


if __name__ == "__main__":
    main()
