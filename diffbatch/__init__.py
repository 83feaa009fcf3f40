"""diffbatch: a list of prompts and some GPUs in, finished pictures and clips out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffbatch.launch.generator import DiffGenerator, GenerationResult

__version__ = "0.1.0"
__all__ = ["DiffGenerator", "GenerationResult", "__version__"]


def __getattr__(name: str) -> Any:
    # On demand: the command line must start fast, and needs neither.
    if name in {"DiffGenerator", "GenerationResult"}:
        from diffbatch.launch import generator

        return getattr(generator, name)
    raise AttributeError(f"module 'diffbatch' has no attribute {name!r}")
