"""A stream that cannot be written any more does not end the program."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import sys
from rich.console import Console
from diffbatch.terminal import LastingStream
stream = LastingStream(sys.stdout)
console = Console(file=stream)
for number in range(20000):
    console.print("line", number)
stream.flush()
sys.stderr.write(f"lost {stream.lost}")
"""


@pytest.mark.parametrize("sink", ["/dev/full", "head", "/dev/null"])
def test_the_program_goes_on_when_nobody_reads(sink: str) -> None:
    if sink == "head":
        command = f"{sys.executable} -c '{_PROGRAM}' | head -1; exit ${{PIPESTATUS[0]}}"
    else:
        command = f"{sys.executable} -c '{_PROGRAM}' > {sink}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == f"lost {sink != '/dev/null'}"
