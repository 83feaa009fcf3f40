"""How diffbatch grows with the size of a job: seconds, memory and the work queue.

python benchmarks/scale.py [--only plan,resume,queue] [--rows 10000,100000,1000000]
[--records 1000,10000,100000] [--leaders 64]: no model is loaded, so 2 cores and a few GB of disk
are enough; minutes. Every figure is of a process of its own: `diffbatch plan --json` on a jsonl
file of so many rows, `diffbatch run` on a folder where all of them are done, and a run whose
leaders make nothing (simulated.py). CPU seconds are user and system together; they tell more than
the clock where others use the machine. Prints one Markdown table each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from diffbatch.job.overrides import CommandLine
from diffbatch.launch.prepare import prepare
from diffbatch.output.manifest import write_manifest
from diffbatch.req import Record

_WORDS = ["a", "red", "blue", "old", "cat", "dog", "house", "under", "the", "white", "river"]
_CONTENT = b"not a picture"
_NAMES_PER_FILE = 50_000  # file systems limit the hard links of one file, ext4 to 65,000
_SIMULATED = Path(__file__).parent / "simulated.py"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one process took."""

    seconds: float
    cpu_s: float
    peak_mb: float
    output: str  # its last line


def measure(*command: str) -> Cost:
    """Run `command` to its end. Raises SystemExit when it fails."""
    begin_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)  # `usage` is of this process alone
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {output}")
    return Cost(
        seconds=time.perf_counter() - begin_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mb=usage.ru_maxrss / 1024,
        output=output.rstrip().rpartition("\n")[2],
    )


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder. `rm` removes it: a million names would make this process large, and on
    Linux the peak of a new process starts with what the one that forked it held."""
    folder = Path(tempfile.mkdtemp(prefix="diffbatch-scale-"))
    try:
        yield folder
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def write_job(folder: Path, num_rows: int, more: str = "") -> Path:
    """A job of prompts of 12 words that all differ; every tenth row has parameters of its own."""
    with (folder / "prompts.jsonl").open("w", encoding="utf-8") as stream:
        for number in range(num_rows):
            words = [_WORDS[(number // 7**place) % len(_WORDS)] for place in range(12)]
            row: dict[str, object] = {"prompt": f"{' '.join(words)}, number {number}"}
            if number % 10 == 0:
                row |= {"seed": number, "num_inference_steps": 4 + number % 3}
            stream.write(json.dumps(row) + "\n")
    job = folder / "job.yaml"
    prompts = "prompts:\n  - file: prompts.jsonl\n"
    job.write_text(f"model: demo\noutput: {folder}/out\n{more}{prompts}", encoding="utf-8")
    return job


def make_all(job: Path) -> None:
    """The run folder of a job that is done: a record and a small file for every request."""
    prepared = prepare(job, [], CommandLine())
    root = prepared.job.output
    root.mkdir()

    def records() -> Iterator[Record]:
        for req in prepared.reqs():
            if req.index % _NAMES_PER_FILE == 0:
                first = root / req.file
                first.write_bytes(_CONTENT)
            else:
                os.link(first, root / req.file)
            yield Record(
                id=req.id,
                index=req.index,
                status="ok",
                file=req.file,
                prompt=req.prompt,
                seed=req.seed,
                params=req.params.as_dict(),
                sha256="0123456789abcdef" * 4,
                bytes=len(_CONTENT),
                height=64,
                width=64,
                num_frames=1,
                ranks=(0,),
                stage_s={"text_encoding": 0.2084523370012903, "denoising": 1.7567676390008273},
                peak_memory_bytes=481533952,
            )

    write_manifest(root / "manifest.jsonl", records())


def show_plan(sizes: list[int]) -> None:
    """Expansion and micro-batches of a long prompt file."""
    show("rows planned", "s", "CPU s", "rows/s", "CPU us per row", "peak MB")
    for num in sizes:
        with scratch_folder() as folder:
            job = write_job(folder, num)
            cost = measure(sys.executable, "-m", "diffbatch", "plan", str(job), "--json")
            assert json.loads(cost.output)["requests"] == num
        show(num, *times(cost), f"{num / cost.seconds:,.0f}", *per_row(cost, num))


def show_resume(sizes: list[int]) -> None:
    """`diffbatch run` with nothing left to do."""
    show("records resumed", "s", "CPU s", "CPU us per record", "peak MB")
    for num in sizes:
        with scratch_folder() as folder:
            job = write_job(folder, num)
            builder = get_context("spawn").Process(target=make_all, args=(job,))
            builder.start()
            builder.join()
            cost = measure(sys.executable, "-m", "diffbatch", "run", str(job))
            assert f"{num} of {num} done, nothing left to do" in cost.output, cost.output
        show(num, *times(cost), *per_row(cost, num))


def show_queue(sizes: list[int], leaders: int) -> None:
    """Micro-batches of one request from the parent to simulated leaders, records back to it."""
    show(
        f"records from {leaders} leaders",
        "s",
        "records/s",
        "parent's CPU us per record",
        "parent's MB at the first record",
        "at the last",
        "peak, merge included",
    )
    for num in sizes:
        with scratch_folder() as folder:
            job = write_job(folder, num, f"parallel: {{replicas: {leaders}}}\n")
            command = [sys.executable, str(_SIMULATED), "run", str(job), "--json"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            begin_s, begin_mb, count, end_s, end_mb = 0.0, 0.0, 0, 0.0, 0.0
            for line in process.stdout:
                if '"event": "record"' not in line:
                    continue
                count += 1
                if count == 1:
                    begin_s, begin_mb = time.perf_counter(), resident_mb(process.pid)
                if count == num:
                    end_s, end_mb = time.perf_counter(), resident_mb(process.pid)
            assert (process.wait(), count) == (0, num)
        took_s, parent = end_s - begin_s, json.loads(line)
        rates = (f"{took_s:.1f}", f"{num / took_s:,.0f}", f"{parent['cpu_s'] / num * 1e6:.0f}")
        show(num, *rates, *(f"{mb:.0f}" for mb in (begin_mb, end_mb, parent["peak_mb"])))


def resident_mb(pid: int) -> float:
    """What a running process holds now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def times(cost: Cost) -> tuple[str, str]:
    return f"{cost.seconds:.2f}", f"{cost.cpu_s:.2f}"


def per_row(cost: Cost, num: int) -> tuple[str, str]:
    return f"{cost.cpu_s / num * 1e6:.1f}", f"{cost.peak_mb:.0f}"


def show(*cells: object) -> None:
    """One row of a Markdown table, a heading with its rule when the first cell is text."""
    texts = [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells]
    print("| " + " | ".join(texts) + " |", flush=True)
    if isinstance(cells[0], str):
        print("|" + "---|" * len(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="plan,resume,queue")
    parser.add_argument("--rows", default="10000,100000,1000000")
    parser.add_argument("--records", default="1000,10000,100000", help="for the queue")
    parser.add_argument("--leaders", type=int, default=64)
    arguments = parser.parse_args()
    rows, records = (
        [int(text) for text in given.split(",")] for given in (arguments.rows, arguments.records)
    )
    parts = {
        "plan": lambda: show_plan(rows),
        "resume": lambda: show_resume(rows),
        "queue": lambda: show_queue(records, arguments.leaders),
    }
    for name in arguments.only.split(","):
        parts[name]()
        print()


if __name__ == "__main__":
    main()
