"""Logging for worker processes: one file per rank, one line per record, UTF-8."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def get_logger(name: str) -> logging.Logger:
    """The project's logger for module `name`."""
    return logging.getLogger(name)


def log_to(path: Path | None) -> None:
    """Send the project's log records to `path` (appending), or to stderr when `path` is None."""
    handler: logging.Handler
    if path is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT))
    root = logging.getLogger("diffbatch")
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    root.propagate = False
