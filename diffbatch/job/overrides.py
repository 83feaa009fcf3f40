"""What the command line says about a job: `--set`, options with a name of their own, prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diffbatch.errors import JobError
from diffbatch.job import yaml12
from diffbatch.job.places import Places
from diffbatch.job.problems import KeyPath, Problems, suggestion
from diffbatch.job.spec import DEGREES, FileEntry, JobSpec, PromptEntry, known_keys

# Keys that hold text: their value is taken as typed, so `--set name={index}` needs no quotes.
_TEXT_KEYS = frozenset(
    {"model", "revision", "variant", "dtype", "output", "name", "format"}
    | {"prompt", "negative_prompt", "image", "file", "column"}
)
_NULLABLE = frozenset({"null", "~"})
_MAPPINGS = frozenset({"defaults", "parallel", "scheduler", "with"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """What the command line adds to a job file.

    `sets` are the texts of `--set`, one `key.path=value` each. `keys` are values of the job file
    that have an option of their own, by dotted path, such as {"model": "demo", "parallel.pp": 2}.
    `params` are sampling parameters, `seed` and `num_outputs_per_prompt`: they beat every entry.
    `is_call`: all this comes from a Python call, so messages must not speak of options.
    """

    sets: Sequence[str] = ()
    keys: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    is_call: bool = False

    def place(self, name: str) -> str:
        """The option that sets parameter or key `name`, or the argument of that name."""
        return name if self.is_call else "--" + name.replace("_", "-")

    def prompt_place(self, number: int) -> str:
        """Where prompt `number`, from 1 on, was given."""
        return f"prompt {number}" if self.is_call else f"--prompt {number}"


def job_of_prompts(
    prompts: Sequence[str], command_line: CommandLine
) -> tuple[dict[str, Any], Places]:
    """A job that is nothing but prompts from the command line; options give the rest."""
    places = Places("")
    for number in range(len(prompts)):
        places.options["prompts", number] = command_line.prompt_place(number + 1)
    return {"prompts": list(prompts)}, places


def apply(data: dict[str, Any], places: Places, command_line: CommandLine) -> None:
    """Put the command line's values into the raw job, in place, and note where they came from."""
    problems = Problems()
    if data.get("parallel") == "auto":  # an option may add to it
        data["parallel"] = {"auto": True}
    for dotted, value in command_line.keys.items():
        path = tuple(dotted.split("."))
        option = command_line.place(path[-1])
        places.replace(_put(data, path, value, option), option)
    for text in command_line.sets:
        try:
            _apply_set(data, places, text)
        except JobError as error:
            problems.add_error(error)
    problems.raise_if_any()
    _degrees_beat_auto(data, command_line)


def _degrees_beat_auto(data: dict[str, Any], command_line: CommandLine) -> None:
    """A degree on the command line switches off `auto` of the job file, but not its own."""
    typed = {*command_line.keys, *(text.partition("=")[0] for text in command_line.sets)}
    degrees = {f"parallel.{name}" for name in DEGREES}
    parallel = data.get("parallel")
    if isinstance(parallel, dict) and typed & degrees and not typed & {"parallel", "parallel.auto"}:
        parallel.pop("auto", None)


def _apply_set(data: dict[str, Any], places: Places, text: str) -> None:
    option = f"--set {text}"
    dotted, equals, typed = text.partition("=")
    if not equals or not dotted:
        raise JobError("write key=value, such as defaults.seed=7", place=option)
    path = _parse_path(dotted, option)
    document = _parse_value(typed, path, option)
    places.replace(_put(data, path, document.value, option), option, document)


def _parse_path(dotted: str, option: str) -> KeyPath:
    """`prompts.3.seed`. Only the first key is checked here; the rest is when the job is."""
    parts = dotted.split(".")
    top = known_keys(JobSpec)
    if parts[0] not in top:
        hint = suggestion(parts[0], top, what="known keys")
        raise JobError(f"unknown key {parts[0]!r}; {hint}", place=option)
    return tuple(parts)


def _parse_value(typed: str, path: KeyPath, option: str) -> yaml12.Document:
    """YAML, except where the key takes text: there quotes are YAML's and all else is literal."""
    takes_text = path[-1] in _TEXT_KEYS or (path[0] == "prompts" and len(path) == 2)
    if takes_text and not typed.startswith(('"', "'")):
        if typed in _NULLABLE:
            return yaml12.Document(value=None, lines={}, typed={(): typed}, comments={})
        if not (path[0] == "prompts" and len(path) == 2 and typed.startswith("{")):
            return yaml12.Document(value=typed, lines={}, typed={}, comments={})
    try:
        return yaml12.loads(typed, option)
    except JobError as error:
        raise JobError(error.problems[0].message, place=option) from error


def _put(data: dict[str, Any], path: KeyPath, value: Any, option: str) -> KeyPath:
    """Set the value at `path`; returns the path with the indices of lists as numbers."""
    target: Any = data
    found: list[str | int] = []
    for depth, part in enumerate(path):
        if not isinstance(target, dict | list):
            raise JobError(f"{path[depth - 1]} is not a mapping: it has no {part!r}", place=option)
        key: Any = _index(target, part, option) if isinstance(target, list) else part
        found.append(key)
        if depth == len(path) - 1:
            target[key] = value
            break
        if found[:-1] == ["prompts"] and isinstance(target[key], str):
            target[key] = {"prompt": target[key]}
        elif isinstance(target, dict) and target.get(key) is None:
            if key not in _MAPPINGS:
                raise JobError(_no_such(str(key)), place=option)
            target[key] = {}
        target = target[key]
    return tuple(found)


def _index(target: list[Any], part: str | int, option: str) -> int:
    text = str(part)
    if not text.isdecimal() or int(text) >= len(target):
        rule = f"from 0 to {len(target) - 1}" if target else "and there is none yet"
        raise JobError(f"{text!r} is not an entry of this list, {rule}", place=option)
    return int(text)


def _no_such(part: str) -> str:
    """A key on the way to the value that the job has not, and that holds nothing if made."""
    valid = {*_MAPPINGS, *known_keys(PromptEntry), *known_keys(FileEntry)}
    return f"unknown key {part!r}; {suggestion(part, sorted(valid), what='known keys')}"
