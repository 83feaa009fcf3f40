"""The job's `scheduler`, checked against the source of the installed diffusers.

The source is read, not imported, as `plan/chain.py` does: a slip costs no launch, and no torch.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from diffbatch.job.problems import nearest, suggestion

_USUAL = "UniPCMultistepScheduler"
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)


def scheduler_problem(choice: Mapping[str, Any]) -> str | None:
    """Why diffusers has no scheduler as `choice` describes it ("name" and overrides), or None."""
    name = choice.get("name")
    if name is None:
        return None
    arguments = _arguments_of(str(name))
    if arguments is None:
        return f"diffusers has no scheduler {name!r}; {_nearest(str(name))}"
    for key in choice:
        if key != "name" and key not in arguments:
            hint = suggestion(key, arguments, what="it takes")
            return f"{name} takes no {key!r}; {hint}"
    return None


def _nearest(name: str) -> str:
    names = sorted(cls.name for source in _sources() for cls in _schedulers_in(source))
    if nearest(name, names) is not None:
        return suggestion(name, names)
    holding = [found for found in names if name.casefold() in found.casefold()]
    if holding:
        return f"did you mean {' or '.join(repr(found) for found in holding[:3])}?"
    return f"give a class of diffusers.schedulers, such as {_USUAL}"


def _arguments_of(name: str) -> list[str] | None:
    """What the constructor of scheduler class `name` takes; None when there is no such class."""
    for source in _sources():
        if name in _CLASS.findall(source):
            for cls in _schedulers_in(source):
                if cls.name == name:
                    return _constructor_of(cls)
    return None


def _constructor_of(cls: ast.ClassDef) -> list[str]:
    for item in cls.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            given = [*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs]
            return [argument.arg for argument in given if argument.arg != "self"]
    return []


def _schedulers_in(source: str) -> Iterator[ast.ClassDef]:
    """The classes that step through timesteps; others of these files are their outputs."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and any(
            isinstance(item, ast.FunctionDef) and item.name == "set_timesteps" for item in node.body
        ):
            yield node


def _sources() -> Iterator[str]:
    spec = importlib.util.find_spec("diffusers")
    assert spec is not None, "a dependency"
    assert spec.origin is not None
    for path in sorted(Path(spec.origin).parent.joinpath("schedulers").rglob("*.py")):
        yield path.read_text(encoding="utf-8")
