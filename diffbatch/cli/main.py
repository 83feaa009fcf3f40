"""The `diffbatch` command. Each command imports what it needs when it runs: --help stays fast."""

from __future__ import annotations

import sys
import traceback

import typer

from diffbatch.cli.plan import plan
from diffbatch.cli.run import run

app = typer.Typer(
    name="diffbatch",
    help="A list of prompts and some GPUs in, finished pictures and clips out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(run)
app.command()(plan)


def main() -> None:
    """Entry point. The one place where errors become messages and exit codes."""
    from diffbatch.errors import EXIT_INTERNAL, DiffbatchError

    _speak_utf8()
    try:
        app()
    except DiffbatchError as error:
        for problem in error.problems:
            sys.stderr.write(f"diffbatch: {problem}\n")
        sys.exit(error.exit_code)
    except Exception:  # noqa: BLE001 the command boundary
        traceback.print_exc()
        sys.stderr.write("diffbatch: internal error, see above\n")
        sys.exit(EXIT_INTERNAL)


def _speak_utf8() -> None:
    """Print any prompt in any locale: cron and containers often have an ASCII one."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
