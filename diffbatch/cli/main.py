"""The `diffbatch` command. Each command imports what it needs when it runs: --help stays fast."""

from __future__ import annotations

import errno
import gc
import os
import sys
import traceback
from typing import Annotated

import typer

from diffbatch.cli.bench import bench
from diffbatch.cli.init import init
from diffbatch.cli.plan import plan
from diffbatch.cli.run import run
from diffbatch.cli.schema import schema
from diffbatch.cli.sheet import sheet

_FULL = {errno.ENOSPC, errno.EDQUOT}
_NUM_BEFORE_GC = 100_000  # new objects; Python's own 700 is for programs with few

app = typer.Typer(
    name="diffbatch",
    help="A list of prompts and some GPUs in, finished pictures and clips out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(asked: bool) -> None:
    if asked:
        from diffbatch import __version__

        typer.echo(f"diffbatch {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A list of prompts and some GPUs in, finished pictures and clips out."""


app.command()(run)
app.command()(plan)
app.command()(bench)
app.command()(init)
app.command()(schema)
app.command()(sheet)


def main() -> None:
    """Entry point. The one place where errors become messages and exit codes."""
    from diffbatch.errors import EXIT_INTERNAL, DiffbatchError
    from diffbatch.terminal import printable

    _speak_utf8()
    # A job's requests and records live to the end: looking for cycles among them again and again,
    # as they become many, would only cost time.
    gc.set_threshold(_NUM_BEFORE_GC)
    try:
        app()
    except DiffbatchError as error:
        for problem in error.problems:
            sys.stderr.write(f"diffbatch: {printable(str(problem))}\n")
        sys.exit(error.exit_code)
    except Exception as error:  # noqa: BLE001 the command boundary
        if isinstance(error, OSError) and error.errno in _FULL:
            what = printable(str(error.filename or "the output"))
            sys.stderr.write(f"diffbatch: cannot write {what}: {error.strerror}; make room\n")
            os._exit(EXIT_INTERNAL)  # without a flush of what could not be written
        traceback.print_exc()
        sys.stderr.write("diffbatch: internal error, see above\n")
        sys.exit(EXIT_INTERNAL)


def _speak_utf8() -> None:
    """Print any prompt and open any file in any locale: cron and containers often have ASCII.

    The codec of file names is fixed when Python starts, so an ASCII one means to start again.
    """
    if sys.getfilesystemencoding() == "ascii":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "diffbatch", *sys.argv[1:]])
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
