"""Tiny checkpoints of real diffusers pipelines: random weights, ordinary folder format.

For tests and for trying the command without a download. The same files each time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tiny_checkpoints import flux, sd3, wan

BUILDERS: dict[str, Callable[[Path], None]] = {
    "wan": wan.build,
    "wan22": wan.build_two_transformers,
    "sd3": sd3.build,
    "flux": flux.build,
}


def build(name: str, folder: Path) -> None:
    """Write checkpoint `name` into `folder` (made when missing)."""
    folder.mkdir(parents=True, exist_ok=True)
    BUILDERS[name](folder)
