"""Texts for the terminal. What users wrote is made safe to show: a prompt must not drive it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TextIO

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 request`, `2 requests`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def printable(text: str) -> str:
    """`text` with control characters written out ("\\x1b"); line breaks and tabs stay."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class LastingStream:
    """A stream whose reader may go: what cannot be written is dropped, and the program goes on.

    A night's pictures must not depend on a full log disk or on a `head -1`. Once a write has
    failed, the stream's file descriptor leads nowhere, so that nothing fails at exit either.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding
        self.lost = False  # something could not be written

    def write(self, text: str) -> int:
        """Write `text`, or drop it."""
        try:
            return len(text) if self.lost else self._stream.write(text)
        except (OSError, ValueError):
            self._give_up()
            return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write every line."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Hand over what is buffered, or drop it."""
        try:
            if not self.lost:
                self._stream.flush()
        except (OSError, ValueError):
            self._give_up()

    def isatty(self) -> bool:
        """Whether a person is looking."""
        return not self.lost and self._stream.isatty()

    def fileno(self) -> int:
        """The stream's file descriptor."""
        return self._stream.fileno()

    def _give_up(self) -> None:
        self.lost = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
