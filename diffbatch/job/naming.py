"""File names from a template: always safe, never longer than a file system takes.

A template is compiled once and rendered for each request. Prompt text is data: it never makes a
folder, leaves the run folder, or looks like an option; only a `/` of the template makes a folder.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from diffbatch.job.problems import suggestion

# File systems take 255 bytes; the rest is room for the marks of a temporary name.
_SEGMENT_BYTES_MAX = 240
_LITERAL_BYTES_MAX = 100
_NUM_SIMPLE_CHARS_MAX = 200  # ASCII, so bytes too; leaves room for any suffix
_SLUG_CHARS_MAX = 40
_NUM_PROMPT_CHARS_READ = 80  # more than a slug needs, far less than a long prompt

NUMBERS = ("index", "seed", "prompt_index", "output_index")
TEXTS = ("slug", "prompt", "id")
FIELDS = (*NUMBERS, *TEXTS)

_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".mp4", ".gif", ".webm", ".npy")
_SPEC = re.compile(r"(?:[\w.-]?[<>^])?[-+ ]?0?\d{0,2}(?:\.\d{1,4})?[bdoxXeEfgGs]?")
_PLAIN = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.+=,@-]*[A-Za-z0-9_])?")
_RESERVED = re.compile(r"(?:CON|PRN|AUX|NUL|COM[0-9]|LPT[0-9])(?:\..*)?", re.IGNORECASE)
_FORBIDDEN = '/\\:*?"<>|'
_BAD_CODES = (
    *range(0x20),
    *range(0x7F, 0xA0),
    *(0x200E, 0x200F, 0x2028, 0x2029, 0xFEFF),
    *range(0x202A, 0x202F),  # bidirectional controls make a name read as another one
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),  # lone surrogates cannot be encoded
)
_CLEAN = dict.fromkeys((*_BAD_CODES, *map(ord, _FORBIDDEN)), "_")
_CLEAN |= {ord(char): " " for char in "\t\n\r"}
_WORDS_ONLY = "".join(c if c.isalnum() else " " for c in map(chr, range(0x80)))  # for translate


class NameTemplateError(ValueError):
    """A template, or a value for one of its fields, that makes no file name."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Literal text, then one field (or none at the end of a segment)."""

    literal: str
    field: str | None
    spec: str


def slugify(prompt: str) -> str:
    """A few words of the prompt for a file name: lower case, letters and digits of any script."""
    text = prompt[:_NUM_PROMPT_CHARS_READ].lower()
    if not text.isascii():
        text = _keep_words(text)
    slug = "-".join(text.translate(_WORDS_ONLY).split()) if text.isascii() else text
    if len(slug) > _SLUG_CHARS_MAX:
        whole, dash, _ = slug[: _SLUG_CHARS_MAX + 1].rpartition("-")
        slug = whole if dash else slug[:_SLUG_CHARS_MAX]
    return slug or "prompt"


def _keep_words(text: str) -> str:
    """Letters and digits with the marks that belong to them, as in Hindi; the rest is a dash."""
    kept: list[str] = []
    for char in unicodedata.normalize("NFC", text):
        is_mark = unicodedata.category(char).startswith("M") and kept and kept[-1] != "-"
        if char.isalnum() or is_mark:
            kept.append(char)
        elif kept and kept[-1] != "-":
            kept.append("-")
    return "".join(kept).strip("-")


class NameTemplate:
    """`{index:05d}-{slug}-{seed}`, compiled. Fields: FIELDS, and columns of the prompt's row."""

    def __init__(self, template: str) -> None:
        self.template = template
        self._segments = _compile(template)
        names = {piece.field for segment in self._segments for piece in segment}
        self.fields = frozenset(name for name in names if name is not None)
        self._is_simple = len(self._segments) == 1 and self.fields <= set(FIELDS)

    def columns(self) -> frozenset[str]:
        """Fields that a prompt's row or `with` has to give."""
        return self.fields.difference(FIELDS)

    def render(self, values: Mapping[str, Any], suffix: str) -> str:
        """The file name for one request; `values` has every field. Raises `NameTemplateError`."""
        if self._is_simple:
            # Nearly all names of nearly all jobs: one call, and a look that nothing needs care.
            name = self.template.format_map(values)
            if len(name) <= _NUM_SIMPLE_CHARS_MAX and _is_plain(name):
                return name + suffix
        last = len(self._segments) - 1
        parts = []
        for number, segment in enumerate(self._segments):
            end = suffix if number == last else ""
            parts.append(_render(segment, values, _SEGMENT_BYTES_MAX - len(end)) + end)
        return "/".join(parts)

    def check_known(self, columns: Mapping[str, Any]) -> None:
        """Every field must be ours or a column of this request."""
        for name in sorted(self.columns()):
            if name not in columns:
                hint = suggestion(name, [*FIELDS, *columns], what="fields")
                raise NameTemplateError(f"unknown field {{{name}}}; {hint}")


def _compile(template: str) -> list[list[_Piece]]:
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise NameTemplateError(f"{error}; write {{{{ for a brace in a name") from error
    segments: list[list[_Piece]] = [[]]
    for literal, name, spec, conversion in parsed:
        *folders, rest = literal.split("/")
        for folder in folders:
            segments[-1].append(_Piece(folder, None, ""))
            segments.append([])
        if name is not None:
            _check_field(name, spec or "", conversion)
        segments[-1].append(_Piece(rest, name, spec or ""))
    _check_literals(template, segments)
    return segments


def _check_field(name: str, spec: str, conversion: str | None) -> None:
    if conversion:
        raise NameTemplateError(
            f"{{{name}!{conversion}}}: conversions are not supported; leave out !r"
        )
    if not name or re.search(r"[.\[\]]", name):
        fields = ", ".join(FIELDS)
        raise NameTemplateError(
            f"{{{name}}} is not a field; fields: {fields}, and columns of the row"
        )
    if not _SPEC.fullmatch(spec):
        raise NameTemplateError(
            f"{{{name}:{spec}}} has a format that does not suit a name, such as :05d"
        )
    if name in FIELDS:
        _format(0 if name in NUMBERS else "x", name, spec)


def _check_literals(template: str, segments: list[list[_Piece]]) -> None:
    """The parts that the user typed must be right as they are; nothing is replaced in them."""
    if template.startswith(("/", "~")) or re.match(r"[A-Za-z]:", template):
        raise NameTemplateError("a name must stay inside the run folder; make it relative")
    for segment in segments:
        literal = "".join(piece.literal for piece in segment)
        is_literal = all(piece.field is None for piece in segment)
        if is_literal and literal in {"", ".", ".."}:
            what = "has an empty part" if not literal else f"leaves the run folder by {literal!r}"
            raise NameTemplateError(f"the name {what}; name folders as in pictures/{{index}}")
        bad = next((char for char in literal if ord(char) in _CLEAN), None)
        if bad is not None:
            raise NameTemplateError(f"{bad!r} cannot be in a file name; leave it out")
        if len(literal.encode()) > _LITERAL_BYTES_MAX:
            raise NameTemplateError(
                f"more than {_LITERAL_BYTES_MAX} bytes of fixed text; shorten it"
            )
    typed = template[template.rfind("}") + 1 :].lower()
    if typed.endswith(_SUFFIXES):
        raise NameTemplateError("leave the suffix out of the name; `format` decides it")


def _render(segment: list[_Piece], values: Mapping[str, Any], room: int) -> str:
    texts: list[str] = []
    can_cut: list[bool] = []
    for piece in segment:
        if piece.literal:
            texts.append(piece.literal)
            can_cut.append(False)
        name = piece.field
        if name is None:
            continue
        value = _format(values[name], name, piece.spec)
        if name not in FIELDS or name == "prompt":
            value = value.translate(_CLEAN)
        texts.append(value)
        can_cut.append(name not in NUMBERS and name != "id")
    text = "".join(texts)
    if len(text) <= room and _is_plain(text):
        return text
    text = _tidy("".join(_fit(texts, can_cut, room)))
    return f"_{text}" if _RESERVED.fullmatch(text) else text


def _is_plain(text: str) -> bool:
    return _PLAIN.fullmatch(text) is not None and not (
        text[:3].isalpha() and _RESERVED.fullmatch(text)
    )


def _format(value: Any, name: str, spec: str) -> str:
    if isinstance(value, dict | list):
        raise NameTemplateError(
            f"{{{name}}} holds a list or mapping, which is no part of a file name"
        )
    if value is None or isinstance(value, bool):
        value = "" if value is None else str(value).lower()
    try:
        return format(value, spec)
    except ValueError as error:
        raise NameTemplateError(f"{{{name}:{spec}}} does not suit {value!r}: {error}") from error


def _fit(texts: list[str], can_cut: list[bool], room: int) -> list[str]:
    """Cut the longest texts, at character boundaries, until all of it fits into `room` bytes."""
    sizes = [len(text.encode()) for text in texts]
    while (over := sum(sizes) - room) > 0:
        longest = max(range(len(texts)), key=lambda i: (can_cut[i], sizes[i]))
        keep = max(sizes[longest] - over, 0)
        texts[longest] = texts[longest].encode()[:keep].decode(errors="ignore")
        sizes[longest] = len(texts[longest].encode())
    return texts


def _tidy(text: str) -> str:
    """No leading dash (an option), dot (hidden) or blank; no trailing dot or blank (Windows)."""
    head = len(text) - len(text.lstrip("-. "))
    text = "_" * head + text[head:]
    tail = len(text) - len(text.rstrip(". "))
    return (text[: len(text) - tail] + "_" * tail) or "_"
