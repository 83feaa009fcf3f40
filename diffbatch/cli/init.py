"""`diffbatch init`: write a job file to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffbatch.errors import JobError


def init(
    path: Annotated[Path, typer.Argument(help="Where to write the job file.")] = Path("job.yaml"),
) -> None:
    """Write a commented job file to start from. Never overwrites a file."""
    from diffbatch.job.starter import STARTER

    try:
        with path.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(STARTER)
    except FileExistsError as error:
        raise JobError("exists already; name another file", place=str(path)) from error
    except OSError as error:
        raise JobError(f"cannot write: {error.strerror}", place=str(path)) from error
    typer.echo(f"{path} written; look at it, then: diffbatch run {path}")
