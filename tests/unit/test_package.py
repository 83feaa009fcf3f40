"""The package itself: its version, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import diffbatch

ROOT = Path(__file__).parents[2]


def test_version_is_the_one_in_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert diffbatch.__version__ == project["version"]


def test_importing_diffbatch_imports_no_torch() -> None:
    code = "import sys, diffbatch; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    heavy = {b"torch", b"diffusers", b"transformers", b"numpy", b"pydantic"}
    assert heavy.isdisjoint(loaded.split())


def test_constraints_pin_every_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.split("==")[0] for line in lines if "==" in line}
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = {_name(requirement) for group in groups for requirement in group}
    assert wanted - {"diffbatch"} <= pinned


def test_the_licence_is_there_as_pyproject_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [name] = project["license-files"]
    text = (ROOT / name).read_text(encoding="utf-8")
    assert project["license"] == "Apache-2.0"
    assert text.split("\n", 2)[0].strip() == "Apache License"


def _name(requirement: str) -> str:
    name = requirement
    for separator in ("[", ">", "=", "<"):
        name = name.split(separator)[0]
    return name.strip().lower()
