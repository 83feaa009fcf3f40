"""`diffbatch sheet`: a contact sheet of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def sheet(
    run_folder: Annotated[Path, typer.Argument(help="The run folder.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Default: NAME-sheet.png beside the run folder."),
    ] = None,
    columns: Annotated[int, typer.Option(min=1, help="Pictures in a row.")] = 4,
    width: Annotated[int, typer.Option(min=16, max=4096, help="Pixels of one picture.")] = 192,
    font: Annotated[
        Path | None, typer.Option(help="A font file that has the prompts' characters.")
    ] = None,
) -> None:
    """Put all pictures of a run on one sheet, with their prompts."""
    from diffbatch.errors import RunFolderError
    from diffbatch.output.sheet import SheetChoices, check_replaceable, make_sheet, save_sheet

    folder = run_folder.resolve()
    path = output or folder.with_name(f"{folder.name}-sheet.png")
    check_replaceable(path)
    made = make_sheet(run_folder, SheetChoices(columns=columns, width_px=width, font=font))
    try:
        save_sheet(made, path)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"the sheet cannot be saved: {error}", place=str(path)) from error
    typer.echo(path)
