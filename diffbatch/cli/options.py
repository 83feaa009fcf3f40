"""The options that `run` and `plan` share: what to make, and how to lay it out.

`JobOptions` lists each once; `takes_job_options` gives them to a command.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from diffbatch.launch.prepare import Prepared

JobFile = Annotated[
    Path | None, typer.Argument(metavar="JOB", help="Job file. Leave it out with --prompt.")
]
Prompts = Annotated[
    list[str] | None,
    typer.Option(
        "--prompt", "-p", help="A prompt; may be given again. - reads one per line from stdin."
    ),
]
Model = Annotated[
    str | None, typer.Option("--model", "-m", help="demo, a model folder, or a hub id.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Run folder.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override any key: --set defaults.num_inference_steps=4"),
]
Replicas = Annotated[
    str | None, typer.Option(help="Copies of the model side by side: a number or auto.")
]
PP = Annotated[
    int | None,
    typer.Option("--pp", "--pipeline-parallel-size", min=1, help="Ranks that share the layers."),
]
CFG = Annotated[
    int | None,
    typer.Option("--cfg", "--cfg-parallel-size", min=1, help="Ranks that share guidance branches."),
]
TP = Annotated[
    int | None,
    typer.Option("--tp", "--tensor-parallel-size", min=1, help="Ranks that share every layer."),
]
Ulysses = Annotated[
    int | None,
    typer.Option("--ulysses", "--ulysses-degree", min=1, help="Ranks that share tokens by heads."),
]
Ring = Annotated[
    int | None,
    typer.Option("--ring", "--ring-degree", min=1, help="Ranks that share tokens by a ring."),
]
Partition = Annotated[
    str | None, typer.Option("--pp-partition", help="Blocks per pipeline rank, such as 8,12,12,8.")
]
InFlight = Annotated[
    int | None,
    typer.Option("--in-flight", min=1, help="Micro-batches in flight per replica; default pp+1."),
]
ParallelAuto = Annotated[
    str | None,
    typer.Option(
        "--parallel", metavar="auto", help="auto: the fewest ranks per replica that fit the memory."
    ),
]
Devices = Annotated[
    str | None, typer.Option(help="GPUs to use, such as 0,1,2,3: in blocks, one per replica.")
]
MemoryGB = Annotated[
    float | None,
    typer.Option("--memory-gb", help="What one rank may hold, in 10^9 bytes; more is refused."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for scripts.")]
Height = Annotated[int | None, typer.Option(help="Pixels; beats every entry.")]
Width = Annotated[int | None, typer.Option(help="Pixels; beats every entry.")]
NumFrames = Annotated[int | None, typer.Option(help="Frames; 1 is a picture. Beats every entry.")]
Steps = Annotated[
    int | None, typer.Option("--num-inference-steps", help="Denoising steps; beats every entry.")
]
Guidance = Annotated[float | None, typer.Option("--guidance-scale", help="Beats every entry.")]
Negative = Annotated[str | None, typer.Option("--negative-prompt", help="Beats every entry.")]
Seed = Annotated[int | None, typer.Option(help="Beats every entry.")]
NumOutputs = Annotated[
    int | None, typer.Option("--num-outputs-per-prompt", help="Seeds seed .. seed+n-1.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Only requests whose file, prompt or id matches; may be given again."),
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first N requests.")]

_KEYS = ("model", "output")
_DEGREES = ("pp", "cfg", "tp", "ulysses", "ring")
_PARALLEL = ("replicas", *_DEGREES, "pp_partition", "in_flight")
_PARAMS = (
    *("height", "width", "num_frames", "num_inference_steps"),
    *("guidance_scale", "negative_prompt", "seed", "num_outputs_per_prompt"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """A job as the command line gives it. Fields are named like the keys that they set."""

    job: JobFile = None
    prompt: Prompts = None
    model: Model = None
    output: Output = None
    set_: Sets = None
    replicas: Replicas = None
    pp: PP = None
    cfg: CFG = None
    tp: TP = None
    ulysses: Ulysses = None
    ring: Ring = None
    pp_partition: Partition = None
    in_flight: InFlight = None
    parallel: ParallelAuto = None
    devices: Devices = None
    memory_gb: MemoryGB = None
    height: Height = None
    width: Width = None
    num_frames: NumFrames = None
    num_inference_steps: Steps = None
    guidance_scale: Guidance = None
    negative_prompt: Negative = None
    seed: Seed = None
    num_outputs_per_prompt: NumOutputs = None
    only: Only = None
    limit: Limit = None

    def prepare(self) -> Prepared:
        """Read and check the job. Raises JobError and PlanError."""
        from diffbatch.job.overrides import CommandLine
        from diffbatch.launch.prepare import Machine, prepare

        prompts = read_prompts(self.job, self.prompt)
        params = {name: getattr(self, name) for name in _PARAMS}
        command_line = CommandLine(sets=self.set_ or (), keys=self._keys(), params=params)
        machine = Machine(devices=self.devices, memory_gb=self.memory_gb)
        return prepare(self.job, prompts, command_line, machine)

    def _keys(self) -> dict[str, Any]:
        """The job file's keys that these options set, by dotted path; those not given are left.

        `--parallel auto` beats the degrees of a job file; with one on the same command line it is
        an error.
        """
        keys = {name: getattr(self, name) for name in _KEYS}
        keys |= {f"parallel.{name}": getattr(self, name) for name in _PARALLEL}
        if self.output is not None:
            keys["output"] = str(self.output)
        if self.replicas is not None and self.replicas.isdecimal():
            keys["parallel.replicas"] = int(self.replicas)
        keys |= self._auto_keys()
        return {key: value for key, value in keys.items() if value is not None}

    def _auto_keys(self) -> dict[str, Any]:
        given = [f"--{axis}" for axis in _DEGREES if getattr(self, axis) is not None]
        if self.parallel is None:
            return {}
        if self.parallel != "auto":
            raise typer.BadParameter(
                f"--parallel takes only auto, found {self.parallel!r}; or give degrees"
            )
        if given:
            raise typer.BadParameter(
                f"--parallel auto chooses the degrees itself; leave out {', '.join(given)}"
            )
        return {"parallel.auto": True, **{f"parallel.{axis}": 1 for axis in _DEGREES}}


def takes_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """A Typer command with all options of `JobOptions`, which `command` gets as one value."""
    hints = get_type_hints(JobOptions, include_extras=True)
    names = [field.name for field in fields(JobOptions)]
    defaults = JobOptions()
    shared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(defaults, name),
            annotation=hints[name],
        )
        for name in names
    ]
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        options = JobOptions(**{name: values.pop(name) for name in names})
        command(options, **values)

    run.__signature__ = inspect.Signature([*shared, *own])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*shared, *own]}
    return run


def read_prompts(job: Path | None, prompts: list[str] | None) -> list[str]:
    """The prompts of the command line, `-` replaced by the lines of stdin.

    Exactly one of a job file and prompts is due.
    """
    if (job is None) == (not prompts):
        raise typer.BadParameter("give a job file, or prompts with --prompt")
    from diffbatch.job.sources.read import read_txt_stream

    found: list[str] = []
    for prompt in prompts or ():
        found += read_txt_stream(sys.stdin.buffer, "stdin") if prompt == "-" else [prompt]
    return found
