"""What needs no model imports no torch: it would cost seconds."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from diffbatch.job.overrides import CommandLine
from diffbatch.launch.prepare import prepare
from tests.unit.model_kit import make_model
from tests.unit.output_helpers import run_job

HEAVY = {"torch", "diffusers", "transformers", "accelerate", "scipy", "pandas"}
HELP_S = 0.4

# Runs the command in a process of its own; its last line is what it had imported.
_WRAPPER = """
import sys
from diffbatch.cli.main import main
try:
    main()
except SystemExit as end:
    print()
    print(end.code or 0, *{name.partition('.')[0] for name in sys.modules})
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("no-torch")
    make_model(folder / "m")
    path = folder / "job.yaml"
    path.write_text(
        f"model: m\noutput: {folder}/out\ndefaults: {{height: 16, width: 16, num_frames: 1}}\n"
        "prompts: [a cat, {prompt: a dog, seed: [1, 2]}]\n"
    )
    return path


def imported_by(*arguments: object) -> tuple[int, str, set[str]]:
    """Exit code, output, and top-level modules of `diffbatch ARGUMENTS`."""
    done = subprocess.run(
        [sys.executable, "-c", _WRAPPER, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    output, _, last = done.stdout.rstrip().rpartition("\n")
    code, *modules = last.split()
    return int(code), output, set(modules)


def test_help_is_there_at_once() -> None:
    times_s = []
    for _ in range(3):
        begin_s = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "diffbatch", "--help"], capture_output=True, check=True
        )
        times_s.append(time.perf_counter() - begin_s)
        assert b"run" in done.stdout
        assert b"plan" in done.stdout
    assert min(times_s) < HELP_S


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("schema",)])
def test_help_and_schema_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    code, _, modules = imported_by(*arguments)
    assert code == 0
    assert not modules & (HEAVY | {"numpy", "PIL"})


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_plan_imports_no_torch(job: Path, more: tuple[str, ...]) -> None:
    code, output, modules = imported_by("plan", job, *more)
    assert (code, "cat" in output) == (0, True)
    assert not modules & HEAVY


def test_a_run_with_nothing_to_do_imports_no_torch(job: Path) -> None:
    reqs = list(prepare(job, [], CommandLine()).reqs())
    run_job(job.parent / "out", reqs)
    code, output, modules = imported_by("run", job)
    assert (code, "3 of 3 done, nothing left to do" in output) == (0, True)
    assert not modules & HEAVY
    assert np.__name__ not in modules, "pictures are not read either"


def test_the_python_client_imports_no_torch() -> None:
    code = "import sys; from diffbatch import DiffGenerator; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert not set(loaded.decode().split()) & HEAVY


def test_a_refused_run_imports_no_torch(job: Path) -> None:
    code, _, modules = imported_by("run", job, "--set", "defaults.height=17")
    assert code == 2
    assert not modules & HEAVY
