"""From pydantic's findings to messages: the place, the value found, the rule and the way out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from diffbatch.job.problems import KeyPath, Problems, nearest, path_text, suggestion
from diffbatch.job.spec import (
    Defaults,
    FileEntry,
    JobSpec,
    Parallel,
    Params,
    PromptEntry,
    known_keys,
)


def explain(
    error: ValidationError,
    problems: Problems,
    *,
    place: Callable[[KeyPath], str],
    typed: Mapping[KeyPath, str],
    root: type[BaseModel] = JobSpec,
    with_path: bool = True,
) -> None:
    """Add every finding to `problems`. `typed` holds what the user wrote where YAML changed it.

    `with_path`: the message begins with the path of the value; off where the place says it.
    """
    for detail in error.errors(include_url=False):
        path, model = _locate(detail, root)
        message = _message(detail, model, typed.get(path))
        where = path_text(path) if with_path else ""
        problems.add(place(path), f"{where}: {message}" if where else message)


def _locate(detail: ErrorDetails, root: type[BaseModel]) -> tuple[KeyPath, type[BaseModel]]:
    """The path as the user sees it (without union branches), and the mapping it ends in."""
    path = list(detail["loc"])
    if root is not JobSpec or len(path) < 2:
        return tuple(path), root
    if path[0] == "prompts" and len(path) > 2:
        model: type[BaseModel] = FileEntry if path[2] == "file" else PromptEntry
        del path[2]
        return tuple(path), model
    inner: dict[str, type[BaseModel]] = {"defaults": Defaults, "parallel": Parallel}
    return tuple(path), inner.get(str(path[0]), root)


# {found} is the value as it was typed, {kind} what it is to YAML; the rest is pydantic's context.
_MESSAGES = {
    "union_tag_not_found": "{found} is {kind} to YAML, not a text, `prompt` or `file`; quote it",
    "string_type": "must be text, found {found} ({kind}); quote it",
    "int_type": "must be a whole number, found {found} ({kind})",
    "int_from_float": "must be a whole number, found {found}",
    "float_type": "must be a number, found {found} ({kind})",
    "finite_number": "must be a finite number, found {found}",
    "greater_than_equal": "must be {ge} or more, found {found}",
    "list_type": "must be a list, found {found} ({kind})",
    "dict_type": "must be a mapping, found {found} ({kind})",
    "model_type": "must be a mapping, found {found} ({kind})",
    "too_short": "is empty; give at least one",
    "string_too_short": "is empty; write one",
    "value_error": "{error}",
}


def _message(detail: ErrorDetails, model: type[BaseModel], typed: str | None) -> str:
    key, value = str(detail["loc"][-1]), detail["input"]
    if detail["type"] == "extra_forbidden":
        return _unknown_key(key, model)
    if detail["type"] == "missing":
        return _missing(key, value)
    if detail["type"] == "literal_error":
        return _not_one_of(str(value), model.model_fields[key].annotation)
    found = typed or _short(value)
    template = _MESSAGES.get(detail["type"])
    if template is None:
        return f"{detail['msg']}, found {found}"
    return template.format(found=found, kind=_kind(value), **detail.get("ctx", {}))


def _unknown_key(key: str, model: type[BaseModel]) -> str:
    valid = known_keys(model)
    hint = _elsewhere(key, model) or suggestion(key, valid, what="known keys")
    return f"unknown key {key!r}; {hint}"


def _elsewhere(key: str, model: type[BaseModel]) -> str:
    """Keys that exist, but at another place of the job: frequent slips."""
    if model is JobSpec and key in known_keys(Defaults):
        return "it belongs under `defaults`, or into an entry of `prompts`"
    if model is PromptEntry and key in known_keys(FileEntry):
        return "an entry has either `prompt`, or `file` and what goes with it"
    if model is FileEntry and key in known_keys(PromptEntry):
        return "only an entry with `prompt` takes it"
    return ""


def _missing(key: str, found: object) -> str:
    if key == "model":
        return "missing; name a model, such as `model: demo`"
    if key == "prompts":
        return "missing; list the prompts"
    if key == "prompt" and isinstance(found, dict) and not set(found) & set(known_keys(Params)):
        return "missing; if this entry is one text with a colon in it, quote it"
    return "missing"


def _not_one_of(found: str, annotation: Any) -> str:
    choices = [choice for choice in _literals(annotation) if isinstance(choice, str)]
    near = nearest(found, choices)
    hint = f"; did you mean {near!r}?" if near else ""
    return f"must be one of {', '.join(choices)}, found {found!r}{hint}"


def _literals(annotation: Any) -> list[Any]:
    """The values of every Literal inside an annotation such as `Literal["a", "b"] | None`."""
    found: list[Any] = []
    for arg in get_args(annotation):
        found += _literals(arg) if get_args(arg) else [arg]
    return found


def _kind(value: object) -> str:
    names: dict[type, str] = {
        bool: "a truth value",
        int: "a number",
        float: "a number",
        str: "text",
        list: "a list",
        dict: "a mapping",
        type(None): "nothing",
    }
    return names.get(type(value), type(value).__name__)


def _short(value: object) -> str:
    """A value in an error message: one line, not long, spelled as in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        pairs = (str(key) if val is None else f"{key}: {val}" for key, val in value.items())
        text = "{" + ", ".join(pairs) + "}"
    else:
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
