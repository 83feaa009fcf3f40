"""How long a long prompt file takes to expand, and how much memory: python benchmarks/expand.py.

Writes a jsonl file of N rows (default a million; every tenth row overrides the seed and the number
of steps), expands it as a stream and prints seconds, rows per second and peak memory.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

from diffbatch.job.expand import expand
from diffbatch.job.load import load_job

_DEFAULTS = {"height": 64, "width": 64, "num_frames": 1, "num_inference_steps": 8}
_WORDS = ["a", "red", "blue", "old", "cat", "dog", "house", "under", "the", "white", "river"]


def write_rows(path: Path, num_rows: int) -> None:
    """Prompts of 12 words that all differ."""
    with path.open("w", encoding="utf-8") as stream:
        for number in range(num_rows):
            words = [_WORDS[(number // 7**place) % len(_WORDS)] for place in range(12)]
            row: dict[str, object] = {"prompt": f"{' '.join(words)}, number {number}"}
            if number % 10 == 0:
                row |= {"seed": number, "num_inference_steps": 4 + number % 3}
            stream.write(json.dumps(row) + "\n")


def main() -> None:
    num_rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder, "prompts.jsonl"), num_rows)
        job_file = Path(folder, "job.yaml")
        job_file.write_text("model: demo\nprompts:\n  - file: prompts.jsonl\n", encoding="utf-8")
        start_s = time.perf_counter()
        reqs = expand(
            load_job(job_file),
            model_key="demo",
            model_defaults=_DEFAULTS,
            modality="image",
            check=lambda params: [],
        )
        num_reqs = sum(1 for _ in reqs)
        took_s = time.perf_counter() - start_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{num_reqs} requests in {took_s:.1f} s, {num_reqs / took_s:.0f}/s, peak {peak_mb:.0f} MB"
    )


if __name__ == "__main__":
    main()
