"""`diffbatch run`."""

from __future__ import annotations

import sys
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


@o.takes_job_options
def run(
    options: o.JobOptions,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over; the old run is moved aside.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try requests again that failed.")
    ] = False,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often dead workers are started again.")
    ] = 1,
    threads: Threads = 1,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also write a trace of a few turns, one per rank.")
    ] = False,
    as_json: o.AsJson = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only what went wrong, on stderr.")
    ] = False,
) -> None:
    """Make everything a job asks for that is not there yet."""
    from rich.console import Console

    from diffbatch.launch.inside import inside_torchrun, run_inside
    from diffbatch.launch.run import RunChoices, run_job
    from diffbatch.terminal import LastingStream

    prepared = options.prepare()
    choices = RunChoices(
        fresh=fresh,
        retry_failed=retry_failed,
        limit=options.limit,
        only=options.only or (),
        max_restarts=max_restarts,
        threads=threads,
        profile=profile,
        as_json=as_json,
        quiet=quiet,
    )
    act = run_inside if inside_torchrun() else run_job
    console = Console(file=LastingStream(sys.stdout))  # type: ignore[arg-type]
    raise typer.Exit(act(prepared, choices, console))
