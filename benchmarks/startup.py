"""From the command to the end of the first denoise step: diffbatch against a bare script.

python benchmarks/startup.py MODEL [--rounds 5]: MODEL is a Wan folder, such as the one of
`scripts/make_tiny_checkpoints`. The bare script imports the classes that the model needs, loads
the pipeline and calls it; both run in turn, and the best of each counts. Prints seconds and ratio.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_SIZE = {"height": 32, "width": 32, "num_frames": 5, "num_inference_steps": 2}
_BARE = """
import json, sys, time
import torch
from diffusers import WanPipeline

torch.set_num_threads(1)
pipeline = WanPipeline.from_pretrained(sys.argv[1])
pipeline.set_progress_bar_config(disable=True)

def step_ended(_pipeline, index, _t, values):
    if index == 0:
        print(time.time(), flush=True)
    return values

generator = torch.Generator().manual_seed(0)
pipeline("a cat", generator=generator, callback_on_step_end=step_ended, **json.loads(sys.argv[2]))
"""


def bare_s(model: Path) -> float:
    """Seconds of the bare script to the end of its first step."""
    begin_s = time.time()
    command = [sys.executable, "-c", _BARE, str(model), json.dumps(_SIZE)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(ended.stdout.splitlines()[0]) - begin_s


def diffbatch_s(model: Path, output: Path, replicas: int) -> float:
    """Seconds of `diffbatch run` until the first replica has taken its first step."""
    sizes = [f"--{name.replace('_', '-')}={value}" for name, value in _SIZE.items()]
    prompts = [part for k in range(replicas) for part in ("-p", f"a cat {k}")]
    command = [sys.executable, "-m", "diffbatch", "run", "--model", str(model), *prompts, *sizes]
    command += ["--replicas", str(replicas), "--output", str(output), "--json"]
    begin_s = time.time()
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    return min(e["time_s"] for e in events if e["event"] == "step") - begin_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    took: dict[str, list[float]] = {"bare script": [], "1 replica": [], "2 replicas": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            took["bare script"].append(bare_s(options.model))
            for replicas, name in ((1, "1 replica"), (2, "2 replicas")):
                output = Path(folder, f"{number}-{replicas}")
                took[name].append(diffbatch_s(options.model, output, replicas))
            print(", ".join(f"{name} {each[-1]:.2f} s" for name, each in took.items()), flush=True)
    base = min(took["bare script"])
    print("\n| | s to the end of the first step | against the bare script |\n|---|---|---|")
    for name, each in took.items():
        print(f"| {name} | {min(each):.2f} | {min(each) / base:.2f}x |")


if __name__ == "__main__":
    main()
