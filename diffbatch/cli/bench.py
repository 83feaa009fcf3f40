"""`diffbatch bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffbatch.cli import options as o

JobFile = Annotated[
    Path | None,
    typer.Argument(metavar="JOB", help="Job file; without one: --model and --prompts."),
]
PromptFile = Annotated[
    str | None, typer.Option("--prompts", help="A prompt file, or random (the default).")
]
NumPrompts = Annotated[
    int, typer.Option(min=1, help="How many requests each point makes: the first ones.")
]
Sweeps = Annotated[
    list[str] | None,
    typer.Option(
        help="An axis and its values, such as replicas=1,2,4; may be given again, and then "
        "every combination is measured. Axes: replicas pp cfg tp ulysses ring in_flight "
        "batch_size."
    ),
]
Warmup = Annotated[
    int,
    typer.Option(min=0, help="How often every replica is filled with requests not counted."),
]


def bench(
    job: JobFile = None,
    model: o.Model = None,
    prompts: PromptFile = None,
    num_prompts: NumPrompts = 16,
    sweep: Sweeps = None,
    warmup: Warmup = 1,
    repeat: Annotated[int, typer.Option(min=1, help="Launches per point.")] = 1,
    height: o.Height = None,
    width: o.Width = None,
    num_frames: o.NumFrames = None,
    steps: o.Steps = None,
    guidance: o.Guidance = None,
    set_: o.Sets = None,
    devices: o.Devices = None,
    memory_gb: o.MemoryGB = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads per rank.")] = 1,
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "-o", help="Where results and run folders go.")
    ] = Path("outputs/bench"),
    as_json: o.AsJson = False,
) -> None:
    """Measure a job under several layouts, each in a launch of its own."""
    from rich.console import Console

    from diffbatch.bench.requests import RANDOM, Workload
    from diffbatch.bench.run import BenchChoices, run_bench
    from diffbatch.bench.sweep import parse_sweeps
    from diffbatch.job.overrides import CommandLine
    from diffbatch.launch.prepare import Machine

    if job is not None and prompts is not None:
        raise typer.BadParameter("give a job file or --prompts, not both")
    params = {
        "height": height,
        "width": width,
        "num_frames": num_frames,
        "num_inference_steps": steps,
        "guidance_scale": guidance,
    }
    keys = {"output": str(output_dir)} | ({} if model is None else {"model": model})
    command_line = CommandLine(sets=set_ or (), keys=keys, params=params)
    workload = Workload(
        job=job,
        prompts=prompts or RANDOM,
        num=num_prompts,
        command_line=command_line,
        machine=Machine(devices=devices, memory_gb=memory_gb),
    )
    choices = BenchChoices(
        workload=workload,
        sweeps=parse_sweeps(sweep or ()),
        output=output_dir,
        warmup=warmup,
        repeat=repeat,
        threads=threads,
        as_json=as_json,
    )
    raise typer.Exit(run_bench(choices, Console()))
