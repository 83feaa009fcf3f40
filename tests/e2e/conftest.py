"""One job that many tests run, interrupt and run again, and what it gives when left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e import command

# Two requests share a forward, so a run that stops between their records must compose it anew.
_JOB = """
model: {model}
output: unused
batch_size: 2
defaults: {{height: 64, width: 64, num_frames: 1, num_inference_steps: 8, guidance_scale: 4.0}}
prompts:
- {{prompt: "a {{color}} {{shape}}", with: {{color: [red, blue, green], shape: [ring, star]}}}}
- {{prompt: a lamp, seed: [1, 2, 3, 4, 5, 6, 7, 8], num_inference_steps: 6}}
- {{prompt: "[red]hostile[/] :cat: <b>", negative_prompt: blurry, num_inference_steps: 4}}
- {{prompt: waves, num_frames: 5, seed: [1, 2], num_inference_steps: 4}}
"""


@dataclass(frozen=True, slots=True)
class Uninterrupted:
    """A job file, the number of its requests, and the folder of a run that nothing disturbed."""

    job: Path
    num: int
    folder: Path

    def assert_equals(self, folder: Path) -> None:
        """`folder` holds the same files and records as the undisturbed run."""
        expected, found = command.contents(self.folder), command.contents(folder)
        assert found.keys() == expected.keys()
        different = [name for name, value in expected.items() if found[name] != value]
        assert not different


@pytest.fixture(scope="session")
def uninterrupted(
    tiny: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Uninterrupted:
    base = tmp_path_factory.mktemp("uninterrupted")
    job = base / "job.yaml"
    job.write_text(_JOB.format(model=tiny("wan")), encoding="utf-8")
    command.run("run", job, "--output", base / "out", "--replicas", 2, "--quiet")
    return Uninterrupted(job=job, num=17, folder=base / "out")
