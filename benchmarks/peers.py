"""The same work with diffbatch and with what people use today, in turn (A B A B).

python benchmarks/peers.py [--rounds 3] [--write]: 16 prompts x 4 seeds of the demo model, 20 steps,
as many threads in all as `--threads` says. Compared are
  loop        plain diffusers, one prompt a call, all threads
  batch N     plain diffusers, N prompts a call, all threads
  processes N accelerate's split_between_processes, one process a thread, N prompts a call;
              started with torchrun, as `accelerate launch` does for GPUs (on a CPU it starts one
              process, whatever --num_processes says)
  diffbatch   one replica a thread, batch_size auto
Wall is the whole process, start-up and imports included; steady is from the first call (the first
request that a worker takes) to the last saved picture. The best round of each counts. Pictures are
compared with those of the loop. `--write` puts the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
from PIL import Image

from diffbatch.models.demo import demo_folder

_ROOT = Path(__file__).resolve().parent.parent
_DOC = _ROOT / "docs" / "benchmarks.md"
_BEGIN, _END = "<!-- peers -->", "<!-- end of peers -->"
_COLOURS, _SHAPES = ("red", "blue", "green", "yellow"), ("circle", "star", "ring", "heart")
_SEEDS = 4


@dataclass
class Peer:
    """One way to do the work, and what it took in each round."""

    name: str
    command: list[str]
    threads: int
    wall_s: list[float] = field(default_factory=list)
    steady_s: list[float] = field(default_factory=list)
    max_level: int = 0  # largest difference from the loop's pictures, of 255


def prompts() -> list[str]:
    """16 distinct prompts."""
    return [f"a {c} {s} on a white background" for c, s in product(_COLOURS, _SHAPES)]


def requests() -> list[dict[str, object]]:
    """Each prompt with each seed."""
    return [
        {"prompt": prompt, "seed": seed, "name": f"{number:02d}-{seed}"}
        for number, prompt in enumerate(prompts())
        for seed in range(_SEEDS)
    ]


def write_work(folder: Path, steps: int) -> tuple[Path, Path]:
    """The requests for the peers, and the same as a job of diffbatch."""
    params = {"height": 64, "width": 64, "num_frames": 1, "negative_prompt": ""}
    params |= {"num_inference_steps": steps, "guidance_scale": 4.0}
    work = {"model": str(demo_folder()), "params": params, "requests": requests()}
    work_path, job_path = folder / "work.json", folder / "job.yaml"
    work_path.write_text(json.dumps(work))
    job = {
        "model": "demo",
        "batch_size": "auto",
        "name": "{prompt_index:02d}-{seed}",
        "defaults": params,
        "prompts": [{"prompt": text, "seed": list(range(_SEEDS))} for text in prompts()],
    }
    job_path.write_text(json.dumps(job))  # JSON is YAML
    return work_path, job_path


def make_peers(work: Path, job: Path, threads: int, batches: list[int]) -> list[Peer]:
    """Every peer, diffbatch last; `{out}` in a command is the folder of the round."""
    script = str(_ROOT / "benchmarks" / "peer_diffusers.py")
    plain = [sys.executable, script, str(work), "{out}", "--threads", str(threads)]
    launch = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(threads), script, str(work), "{out}", "--accelerate"),
    ]
    ours = [sys.executable, "-m", "diffbatch", "run", str(job), "--output", "{out}", "--json"]
    ours += ["--replicas", str(threads), "--threads", "1"]
    peers = [Peer("loop", plain, threads)]
    peers += [Peer(f"batch {n}", [*plain, "--batch", str(n)], threads) for n in batches if n > 1]
    peers += [Peer(f"processes {n}", [*launch, "--batch", str(n)], 1) for n in batches]
    return [*peers, Peer("diffbatch", ours, 1)]


def measure(peer: Peer, out: Path) -> None:
    """One whole process of `peer`."""
    out.mkdir()
    command = [part.replace("{out}", str(out)) for part in peer.command]
    environment = {**os.environ, "OMP_NUM_THREADS": str(peer.threads)}
    begin_s = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    peer.wall_s.append(time.perf_counter() - begin_s)
    if ended.returncode:
        sys.exit(f"{' '.join(command)}\n{ended.stdout}\n{ended.stderr}")
    if peer.name == "diffbatch":
        events = [json.loads(line) for line in ended.stdout.splitlines()]
        begins = [event["time_s"] for event in events if event["event"] == "started"]
        ends = [event["time_s"] for event in events if event["event"] == "record"]
    else:
        times = [json.loads(path.read_text()) for path in out.glob("times-*.json")]
        begins, ends = [t["begin_s"] for t in times], [t["end_s"] for t in times]
    peer.steady_s.append(max(ends) - min(begins))


def compare(out: Path, loop: Path) -> int:
    """The largest difference between the two folders' pictures, of 255."""
    worst = 0
    for request in requests():
        name = f"{request['name']}.png"
        mine, theirs = (
            np.asarray(Image.open(folder / name), dtype=np.int16) for folder in (out, loop)
        )
        worst = max(worst, int(np.abs(mine - theirs).max()))
    return worst


def table(peers: list[Peer], options: argparse.Namespace) -> str:
    """Markdown: every peer, then what diffbatch gains."""
    num = len(requests())
    ours = peers[-1]
    lines = [
        f"{num} pictures ({len(prompts())} prompts x {_SEEDS} seeds), {options.steps} steps, "
        f"{options.threads} threads in all, best of {options.rounds} rounds in turn:",
        "",
        "| | steady, s per picture | wall, s | steady: diffbatch is | wall: diffbatch is "
        "| pixels differ by |",
        "|---|---|---|---|---|---|",
    ]
    for peer in peers:
        steady, wall = min(peer.steady_s), min(peer.wall_s)
        lines.append(
            f"| {peer.name} | {steady / num:.3f} | {wall:.1f} | {steady / min(ours.steady_s):.2f}x "
            f"| {wall / min(ours.wall_s):.2f}x | {peer.max_level} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2, help="in all, for every peer")
    parser.add_argument("--batches", default="1,4,8,16", help="sizes to try, as N,N,...")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work, job = write_work(Path(folder), options.steps)
        batches = [int(text) for text in options.batches.split(",")]
        peers = make_peers(work, job, options.threads, batches)
        for number in range(options.rounds):
            for at, peer in enumerate(peers):
                out = Path(folder, f"{number}-{at}")
                measure(peer, out)
                peer.max_level = max(peer.max_level, compare(out, Path(folder, "0-0")))
                print(
                    f"round {number}: {peer.name}: {peer.steady_s[-1]:.1f} s steady, "
                    f"{peer.wall_s[-1]:.1f} s wall",
                    flush=True,
                )
    made = table(peers, options)
    print(f"\n{made}")
    if options.write:
        before, _, rest = _DOC.read_text().partition(_BEGIN)
        _, _, after = rest.partition(_END)
        _DOC.write_text(f"{before}{_BEGIN}\n{made}\n{_END}{after}")


if __name__ == "__main__":
    main()
