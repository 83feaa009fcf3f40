"""How long `diffbatch plan --json` takes on a long prompt file, and how much memory.

python benchmarks/plan.py [ROWS]: writes a jsonl file of ROWS rows (default a million; every tenth
row overrides the seed and the number of steps), plans it and prints seconds and peak memory.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
        command = [sys.executable, "-m", "diffbatch", "plan", str(job_file), "--json"]
        plan = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        took_s = time.perf_counter() - start_s
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    num = plan["requests"]
    print(f"{num} requests planned in {took_s:.1f} s, {num / took_s:.0f}/s, peak {peak_mb:.0f} MB")


if __name__ == "__main__":
    main()
