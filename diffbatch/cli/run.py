"""`diffbatch run`."""

from __future__ import annotations

from typing import Annotated

import typer

from diffbatch.cli import options as o

Threads = Annotated[
    int,
    typer.Option(
        min=1,
        help="CPU threads per rank. Pixels on a CPU may depend on this in the last bit, "
        "so it does not follow the number of replicas.",
    ),
]


def run(
    job: o.JobFile = None,
    prompt: o.Prompts = None,
    model: o.Model = None,
    output: o.Output = None,
    set_: o.Sets = None,
    replicas: o.Replicas = None,
    pp: o.PP = None,
    cfg: o.CFG = None,
    tp: o.TP = None,
    ulysses: o.Ulysses = None,
    ring: o.Ring = None,
    pp_partition: o.Partition = None,
    in_flight: o.InFlight = None,
    parallel: o.ParallelAuto = None,
    devices: o.Devices = None,
    memory_gb: o.MemoryGB = None,
    height: o.Height = None,
    width: o.Width = None,
    num_frames: o.NumFrames = None,
    steps: o.Steps = None,
    guidance: o.Guidance = None,
    negative: o.Negative = None,
    seed: o.Seed = None,
    num_outputs: o.NumOutputs = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; the old run is moved aside.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try requests again that failed.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N requests.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only requests whose file, prompt or id matches; may be given again."),
    ] = None,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often dead workers are started again.")
    ] = 1,
    threads: Threads = 1,
    as_json: o.AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors.")] = False,
) -> None:
    """Make everything a job asks for that is not there yet."""
    from rich.console import Console

    from diffbatch.job.overrides import CommandLine
    from diffbatch.launch.inside import inside_torchrun, run_inside
    from diffbatch.launch.prepare import Machine, prepare
    from diffbatch.launch.run import RunChoices, run_job

    prompts = o.read_prompts(job, prompt)
    params = {
        "height": height,
        "width": width,
        "num_frames": num_frames,
        "num_inference_steps": steps,
        "guidance_scale": guidance,
        "negative_prompt": negative,
        "seed": seed,
        "num_outputs_per_prompt": num_outputs,
    }
    keys = o.job_keys(
        model,
        output,
        replicas,
        parallel,
        pp=pp,
        cfg=cfg,
        tp=tp,
        ulysses=ulysses,
        ring=ring,
        pp_partition=pp_partition,
        in_flight=in_flight,
    )
    command_line = CommandLine(sets=set_ or (), keys=keys, params=params)
    choices = RunChoices(
        fresh=fresh,
        retry_failed=retry_failed,
        limit=limit,
        only=only or (),
        max_restarts=max_restarts,
        threads=threads,
        as_json=as_json,
        quiet=quiet,
    )
    machine = Machine(devices=devices, memory_gb=memory_gb)
    prepared = prepare(job, prompts, command_line, machine)
    act = run_inside if inside_torchrun() else run_job
    raise typer.Exit(act(prepared, choices, Console()))
