"""The demo model that ships with the package: a tiny Wan pipeline trained on drawn shapes."""

from __future__ import annotations

from pathlib import Path


def demo_folder() -> Path:
    """The folder with the demo weights, as `DiffusionPipeline.from_pretrained` takes it."""
    return Path(__file__).resolve().parent / "weights"
