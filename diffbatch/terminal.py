"""Texts for the terminal. What users wrote is made safe to show: a prompt must not drive it."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 request`, `2 requests`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def printable(text: str) -> str:
    """`text` with control characters written out ("\\x1b"); line breaks and tabs stay."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
