"""The command's boundary: every way to end has its code and its words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diffbatch import __version__
from diffbatch.cli.main import app, main
from diffbatch.errors import JobError, PlanError, Problem, RunFolderError, WorkerError
from tests.unit.model_kit import make_model


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (JobError("wrong", place="job.yaml:3"), 2, "diffbatch: job.yaml:3: wrong\n"),
        (PlanError("too big"), 2, "diffbatch: too big\n"),
        (RunFolderError("in use"), 2, "diffbatch: in use\n"),
        (WorkerError("gone"), 1, "diffbatch: gone\n"),
        (
            JobError([Problem("a", "one"), Problem("b", "two")]),
            2,
            "diffbatch: a: one\ndiffbatch: b: two\n",
        ),
        (JobError("found '\x1b[31m'"), 2, "diffbatch: found '\\x1b[31m'\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_a_line_per_problem_and_a_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    said: str,
) -> None:
    assert _end(monkeypatch, error) == code
    assert capsys.readouterr().err == said


def test_a_bug_is_code_1_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _end(monkeypatch, ZeroDivisionError("oops")) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert "ZeroDivisionError: oops\ndiffbatch: internal error, see above\n" in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "diffbatch", "schema"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    said = "diffbatch: cannot write the output: No space left on device; make room\n"
    assert (ended.returncode, ended.stderr) == (1, said)


def _end(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> object:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("diffbatch.launch.prepare.prepare", fail)
    monkeypatch.setattr(sys, "argv", ["diffbatch", "plan", "job.yaml"])
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code


@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_any_prompt_can_be_shown_in_an_ascii_locale(tmp_path: Path, locale: str) -> None:
    make_model(tmp_path / "m")
    done = subprocess.run(
        [sys.executable, "-m", "diffbatch", "plan", "-m", "m", "-p", "caf\u00e9 \u732b"],
        env={"PATH": "/usr/bin", "PYTHONPATH": str(Path(__file__).parents[2]), "LC_ALL": locale}
        | {"PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "caf\u00e9 \u732b" in done.stdout.decode()


def test_the_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"diffbatch {__version__}\n")
