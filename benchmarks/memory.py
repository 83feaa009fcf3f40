"""Memory of pipeline ranks: what each of two ranks holds of a large transformer, and one process.

python benchmarks/memory.py: makes a checkpoint with more than 1 GB of transformer weights, loads it
in fresh processes and prints bytes read, bytes held, and by how much resident memory grew at most.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

_LAYERS, _HEADS = 12, 24  # width 1536: about 1.4 GB in fp32


def load(folder: str, pp: int, rank: int) -> None:
    """In a process of its own: load a segment, touch every weight, print what it took."""
    from diffbatch.models.segment import load_segment
    from diffbatch.plan.split import PipelineShare

    before = _peak_bytes()
    cut, facts = load_segment(Path(folder), PipelineShare(pp=pp, rank=rank))
    touched = sum(float(p.sum()) for p in cut.model.parameters() if not p.is_meta)
    grown = _peak_bytes() - before
    told = {"read": facts.bytes_read, "held": facts.bytes_held, "grown": grown, "sum": touched}
    print(json.dumps(told))


def _peak_bytes() -> int:
    """The most resident memory so far. (getrusage would also count the parent's, before exec.)"""
    lines = Path("/proc/self/status").read_text().splitlines()
    [kib] = [line.split()[1] for line in lines if line.startswith("VmHWM")]
    return int(kib) * 1024


def main() -> None:
    from checkpoint import make_checkpoint

    with tempfile.TemporaryDirectory() as work:
        folder = make_checkpoint(Path(work), num_layers=_LAYERS, num_heads=_HEADS) / "transformer"
        found = {}
        for pp, rank in [(1, 0), (2, 0), (2, 1)]:
            command = [sys.executable, __file__, str(folder), str(pp), str(rank)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[pp, rank] = json.loads(output.splitlines()[-1])
    whole = found[1, 0]
    print("| rank | bytes read | bytes held | resident memory grew by | of one process |")
    print("|---|---|---|---|---|")
    for (pp, rank), one in found.items():
        name = "one process" if pp == 1 else f"pp {pp} rank {rank}"
        sizes = " | ".join(f"{one[key] / 1e6:.0f} MB" for key in ("read", "held", "grown"))
        print(f"| {name} | {sizes} | {one['grown'] / whole['grown']:.2f}x |")


if __name__ == "__main__":
    load(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 1 else main()
