"""YAML as people expect it to read: the YAML 1.2 core scalars, safe, with line numbers.

PyYAML follows YAML 1.1, where `no` is false, `16:9` is 969, `042` is 34, `1e-4` is text and the
last of two equal keys wins in silence. Here only null, true/false, plain integers and floats are
not text; a doubled key is an error; what was typed is kept for messages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

from diffbatch.errors import JobError
from diffbatch.job.problems import KeyPath, Problems, path_text
from diffbatch.job.textfile import read_text

_FILE_BYTES_MAX = 16 * 2**20
_DEPTH_MAX = 50
_NUM_ALIASED_MAX = 10_000  # nodes reached a second time: bounds what an alias bomb can expand to

_TAG = "tag:yaml.org,2002:"
_SCALARS = {
    "null": (re.compile(r"(?:null|Null|NULL|~|)"), ["n", "N", "~", ""]),
    "bool": (re.compile(r"(?:true|True|TRUE|false|False|FALSE)"), list("tTfF")),
    "int": (re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)"), list("-+0123456789")),
    "float": (
        re.compile(
            r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"
        ),
        list("-+.0123456789"),
    ),
}

# libyaml's parser where PyYAML was built with it: ten times faster on a long list of prompts.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


for _name, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"^{_pattern.pattern}$"), _first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A YAML value, with where and how each part of it was typed."""

    value: Any
    lines: dict[KeyPath, int]
    typed: dict[KeyPath, str]  # the text of scalars that are not text to YAML
    comments: dict[
        KeyPath, str
    ]  # `#1 fan` after unquoted text: a comment to YAML, but was it meant?


def load_file(path: Path, shown: str, *, what: str) -> Document:
    """Read the one document of a YAML file. `shown` is the file's name in messages."""
    text = read_text(
        path,
        shown,
        what=what,
        max_bytes=_FILE_BYTES_MAX,
        instead="put the prompts into a jsonl or csv file",
    )
    return loads(text, shown)


def loads(text: str, shown: str) -> Document:
    """Read one YAML document from `text`; raises `JobError` with all that is wrong in it."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, shown) from error
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise JobError(f"not valid YAML: {reason}", place=shown) from error
    except RecursionError as error:
        raise JobError(f"nested more than {_DEPTH_MAX} deep", place=shown) from error
    finally:
        loader.dispose()
    walk = _Walk(shown, text.split("\n"))
    value = None if node is None else walk.value(node, ())
    walk.problems.raise_if_any()
    return Document(value=value, lines=walk.lines, typed=walk.typed, comments=walk.comments)


def _syntax_error(error: yaml.MarkedYAMLError, shown: str) -> JobError:
    """Where the parser gave up, and where the part began that it was reading."""
    line = error.problem_mark.line + 1 if error.problem_mark else 1
    begun = f" {error.context}" if error.context else ""
    if begun and error.context_mark:
        begun += f" from line {error.context_mark.line + 1} on:"
    return JobError(f"not valid YAML:{begun} {error.problem}", place=f"{shown}:{line}")


@dataclass(slots=True)
class _Walk:
    """Turns composed nodes into plain values and notes positions on the way."""

    shown: str
    text_lines: list[str]
    problems: Problems = field(default_factory=Problems)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    typed: dict[KeyPath, str] = field(default_factory=dict)
    comments: dict[KeyPath, str] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _num_aliased: int = 0

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._guard(node, path)
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(child, (*path, i)) for i, child in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        return self._bad_tag(node, path)

    def _guard(self, node: yaml.Node, path: KeyPath) -> None:
        """Stop aliases that expand without end; nesting bounds the recursion of `value`."""
        place = f"{self.shown}:{node.start_mark.line + 1}"
        if len(path) > _DEPTH_MAX:
            raise JobError(f"nested more than {_DEPTH_MAX} deep", place=place)
        if id(node) in self._seen:
            self._num_aliased += 1
            if self._num_aliased > _NUM_ALIASED_MAX:
                limit = f"{_NUM_ALIASED_MAX} values"
                raise JobError(f"aliases expand to more than {limit}; write it out", place=place)
        self._seen.add(id(node))

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _TAG + "str":
                typed = getattr(key_node, "value", "")
                shown = repr(typed) if isinstance(typed, str) else "a list or mapping"
                self._add(line, path, f"the key {shown} is not text; quote it")
                continue
            key = key_node.value
            if key in found:
                first = self.lines[*path, key]
                self._add(line, path, f"the key {key!r} is already on line {first}; keep one")
                continue
            self.lines[*path, key] = line
            found[key] = self.value(value_node, (*path, key))
        return found

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        kind, text = node.tag.removeprefix(_TAG), node.value
        if kind == "str":
            self._note_comment(node, path)
            return text
        if kind not in _SCALARS:
            return self._bad_tag(node, path)
        self.typed[path] = text
        pattern, _ = _SCALARS[kind]
        if not pattern.fullmatch(text) or len(text) > 400:
            self._add(node.start_mark.line + 1, path, f"{text[:40]!r} is not a valid {kind}")
            return None
        return _scalar_value(kind, text)

    def _note_comment(self, node: yaml.ScalarNode, path: KeyPath) -> None:
        """`number #1 fan` ends at the blank for YAML; `a cat  # note` is an ordinary comment."""
        end = node.end_mark
        if node.style or end.line >= len(self.text_lines):
            return
        found = re.match(r"\s+(#[^\s#].*)", self.text_lines[end.line][end.column :])
        if found:
            self.comments[path] = found[1].rstrip()

    def _bad_tag(self, node: yaml.Node, path: KeyPath) -> None:
        line = node.start_mark.line + 1
        self._add(line, path, f"the tag {node.tag!r} is not allowed here; leave it out")

    def _add(self, line: int, path: KeyPath, message: str) -> None:
        where = path_text(path)
        self.problems.add(f"{self.shown}:{line}", f"{where}: {message}" if where else message)


def _scalar_value(kind: str, text: str) -> Any:
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text, base)
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
