"""The job file's keys, their types and their defaults, as pydantic models.

This is the edge where bytes come from outside, so everything is strict: unknown keys and
lossy conversions are errors. Names of sampling parameters are those of diffusers' pipeline calls.
`explain.py` turns pydantic's findings into the messages that users see.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from diffbatch.job.problems import nearest

SEED_MAX = 2**64 - 1  # what torch.Generator.manual_seed takes

DType = Literal["auto", "float32", "bfloat16", "float16"]
Format = Literal["png", "jpg", "webp", "mp4", "gif", "webm", "npy"]
SourceFormat = Literal["txt", "csv", "tsv", "jsonl", "json", "yaml", "parquet"]
PositiveInt = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, le=SEED_MAX)]


def _check_seed(value: Any) -> Any:
    """One message for every wrong seed, whatever branch of the union it would fail in."""
    seeds = value if isinstance(value, list) else [value]
    if not seeds:
        raise ValueError("the list of seeds is empty; give at least one seed")
    for seed in seeds:
        if seed is None or (type(seed) is int and seed < 0):
            shown = "null" if seed is None else seed
            raise ValueError(
                f"{shown} would draw another seed on every run, and a job must be repeatable; "
                "write a number from 0 on, such as 0"
            )
        if type(seed) is not int or seed > SEED_MAX:
            raise ValueError(f"a seed is a whole number from 0 to 2**64-1, found {seed!r}")
    return value


def _check_auto_or_count(value: Any) -> Any:
    if value == "auto" or (type(value) is int and value >= 1):
        return value
    raise ValueError(f"must be auto or a whole number from 1 on, found {value!r}")


def _check_parallel(value: Any) -> Any:
    """`parallel: auto` is short for the mapping that says so."""
    return {"auto": True} if value == "auto" else value


def _check_scheduler(value: Any) -> Any:
    name = value.get("name") if isinstance(value, dict) else value
    if value is None or (isinstance(name, str) and name):
        return value
    raise ValueError(f"must be a class name, or a mapping with the key `name`, found {value!r}")


def _check_prompt(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("the prompt is empty; write some text or remove the entry")
    return value


Seeds = Annotated[Seed | list[Seed] | None, BeforeValidator(_check_seed)]  # None: not given
Prompt = Annotated[str, BeforeValidator(_check_prompt)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Params(_Strict):
    """What shapes the pixels besides prompt and seed. A key that is null counts as not given."""

    negative_prompt: str | None = Field(
        default=None, description="What the picture should not show."
    )
    image: str | None = Field(default=None, description="Conditioning image; a path.")
    height: PositiveInt | None = Field(default=None, description="Pixels.")
    width: PositiveInt | None = Field(default=None, description="Pixels.")
    num_frames: PositiveInt | None = Field(
        default=None, description="Frames of a clip; 1 is a picture."
    )
    num_inference_steps: PositiveInt | None = Field(default=None, description="Denoising steps.")
    guidance_scale: float | None = Field(default=None, description="Classifier-free guidance.")
    guidance_scale_2: float | None = Field(
        default=None, description="Guidance of a second transformer."
    )
    max_sequence_length: PositiveInt | None = Field(default=None, description="Text tokens.")
    fps: PositiveInt | None = Field(default=None, description="Frames per second of a clip's file.")

    def given(self) -> dict[str, Any]:
        """The sampling parameters that are set here, by name."""
        values = ((name, getattr(self, name)) for name in Params.model_fields)
        return {name: value for name, value in values if value is not None}


class Request(Params):
    """Sampling parameters, and how often with which seeds."""

    seed: Seeds = Field(default=None, description="One seed, or a list: one request each.")
    num_outputs_per_prompt: PositiveInt | None = Field(
        default=None, description="n outputs take the seeds seed .. seed+n-1."
    )


class Defaults(Request):
    """Values for every entry that does not give its own."""


class PromptEntry(Request):
    """One prompt, or a product of prompts, with values of its own."""

    prompt: Prompt = Field(description="The text; {name} stands for a value of `with`.")
    with_: dict[str, Annotated[list[str], Field(min_length=1)]] | None = Field(
        default=None, alias="with", description="Lists of values; every combination is one prompt."
    )


class FileEntry(Request):
    """A file of prompts, with values for all its rows."""

    file: str = Field(description="Path, relative to the job file.")
    column: str | None = Field(default=None, description="The column or key that holds the prompt.")
    limit: PositiveInt | None = Field(default=None, description="Read only the first N rows.")
    format: SourceFormat | None = Field(default=None, description="Default: by the file's suffix.")


def known_keys(model: type[BaseModel]) -> list[str]:
    """The keys a mapping of this kind may have, as they are typed."""
    return [field.alias or name for name, field in model.model_fields.items()]


_PROMPT_KEYS, _FILE_KEYS = known_keys(PromptEntry), known_keys(FileEntry)


def entry_kind(value: Any) -> str | None:
    """Which of the three kinds of entry this is; None if it is nothing that holds a prompt.

    A mapping with no known key is a prompt that YAML took apart: `{red|blue}`, `a cat: sitting`.
    """
    if isinstance(value, str | Params):
        return "text" if isinstance(value, str) else "prompt"
    if not isinstance(value, dict):
        return None
    if "file" in value and "prompt" not in value:
        return "file"
    known = {*_PROMPT_KEYS, *_FILE_KEYS}
    if any(key in known or nearest(str(key), known) for key in value):
        reads_file = "prompt" not in value and not {"column", "limit", "format"}.isdisjoint(value)
        return "file" if reads_file else "prompt"
    return None


Entry = Annotated[
    Annotated[Prompt, Tag("text")]
    | Annotated[PromptEntry, Tag("prompt")]
    | Annotated[FileEntry, Tag("file")],
    Discriminator(entry_kind),
]


class SchedulerSpec(BaseModel):
    """Another scheduler class, with overrides of its config."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    name: str = Field(description="Class name in diffusers.")


DEGREES = ("pp", "cfg", "tp", "ulysses", "ring")  # of one replica


class Parallel(_Strict):
    """How ranks are laid out. The product of all is the number of processes."""

    replicas: Annotated[Literal["auto"] | PositiveInt, BeforeValidator(_check_auto_or_count)] = (
        Field(default="auto", description="Copies of the model that work side by side.")
    )
    pp: PositiveInt = Field(default=1, description="Pipeline parallel: layers cut over ranks.")
    pp_partition: str | None = Field(
        default=None, description="Blocks per pipeline rank, such as 8,12,12,8; default: even."
    )
    in_flight: PositiveInt | None = Field(
        default=None, description="Micro-batches between first and last step; default: pp + 1."
    )
    cfg: PositiveInt = Field(default=1, description="Guidance branches over ranks.")
    tp: PositiveInt = Field(default=1, description="Tensor parallel.")
    ulysses: PositiveInt = Field(default=1, description="Sequence parallel by heads.")
    ring: PositiveInt = Field(default=1, description="Sequence parallel by a ring.")
    auto: bool = Field(
        default=False, description="Choose the degrees: the fewest ranks per replica that fit."
    )

    @model_validator(mode="after")
    def _auto_or_degrees(self) -> Self:
        given = [f"{name} {getattr(self, name)}" for name in DEGREES if getattr(self, name) > 1]
        if self.auto and given:
            raise ValueError(f"auto chooses the degrees itself; leave out {', '.join(given)}")
        return self


class JobSpec(_Strict):
    """A job: a model, a run folder, and prompts."""

    model: str = Field(min_length=1, description="`demo`, a local folder, or a hub id.")
    revision: str | None = Field(default=None, description="Branch, tag or commit of a hub model.")
    variant: str | None = Field(default=None, description="Weights variant, such as fp16.")
    dtype: DType = Field(default="auto", description="auto: float32 on CPU, bfloat16 on a GPU.")
    scheduler: Annotated[str | SchedulerSpec | None, BeforeValidator(_check_scheduler)] = Field(
        default=None, description="Class name, or a mapping: name and config overrides."
    )
    output: str | None = Field(
        default=None, description="Run folder; default outputs/<job file's name>."
    )
    name: str = Field(
        default="{index:05d}-{slug}-{seed}", description="Template of the file names."
    )
    format: Format | None = Field(
        default=None, description="Default: png for pictures, mp4 for clips."
    )
    batch_size: Annotated[Literal["auto"] | PositiveInt, BeforeValidator(_check_auto_or_count)] = (
        Field(default=1, description="Requests in one forward at most; auto: by their tokens.")
    )
    defaults: Defaults = Defaults()
    prompts: list[Entry] = Field(min_length=1, description="Texts, mappings, or prompt files.")
    parallel: Annotated[
        Parallel,
        BeforeValidator(_check_parallel, json_schema_input_type=Literal["auto"] | Parallel),
    ] = Field(default=Parallel(), description="`auto`, or a mapping.")
