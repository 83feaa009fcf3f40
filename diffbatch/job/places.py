"""Where each part of a job was typed: a line of the job file, or an option of the command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from diffbatch.job.problems import KeyPath
from diffbatch.job.yaml12 import Document


@dataclass(slots=True)
class Places:
    """Maps a key path to its place; a part that is missing has the place of what encloses it."""

    shown: str  # the job file as the user named it; "" when there is none
    lines: dict[KeyPath, int] = field(default_factory=dict)
    options: dict[KeyPath, str] = field(default_factory=dict)
    typed: dict[KeyPath, str] = field(default_factory=dict)
    comments: dict[KeyPath, str] = field(default_factory=dict)

    def at(self, path: KeyPath) -> str:
        """`jobs/promo.yaml:12`, or the option that set the value."""
        for end in range(len(path), -1, -1):
            part = path[:end]
            if part in self.options:
                return self.options[part]
            if part in self.lines:
                return f"{self.shown}:{self.lines[part]}"
        return self.shown

    def replace(self, path: KeyPath, option: str, document: Document | None = None) -> None:
        """From now on everything at and below `path` comes from `option`."""
        tables: tuple[dict[KeyPath, Any], ...] = (
            self.lines,
            self.options,
            self.typed,
            self.comments,
        )
        for table in tables:
            for old in [key for key in table if key[: len(path)] == path]:
                del table[old]
        self.options[path] = option
        if document is not None:
            self.typed.update({(*path, *key): text for key, text in document.typed.items()})
