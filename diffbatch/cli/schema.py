"""`diffbatch schema`: print the JSON Schema of the job file."""

from __future__ import annotations

import json

import typer


def schema() -> None:
    """Print the JSON Schema of the job file, for editors to complete and check from."""
    from diffbatch.job.schema import job_schema

    typer.echo(json.dumps(job_schema(), indent=2))
