"""What a run says at its end, with workers that make nothing."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from diffbatch.errors import EXIT_INTERRUPTED, EXIT_OK, JobError
from diffbatch.job.overrides import CommandLine
from diffbatch.launch.prepare import Prepared, prepare
from diffbatch.launch.run import RunChoices, carry_out
from diffbatch.launch.traces import Traces
from diffbatch.req import MicroBatch
from diffbatch.worker.link import Message
from tests.unit.model_kit import make_model

SIZE = {"height": 64, "width": 64, "num_frames": 1}


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    keys = {"model": str(make_model(tmp_path / "m")), "output": str(tmp_path / "out")}
    return prepare(None, ["a cat"], CommandLine(keys=keys, params=SIZE))


def end_of(prepared: Prepared, **choices: Any) -> tuple[int, str]:
    """Code and text of a run whose workers are stopped at once."""

    def work(_batches: Sequence[MicroBatch], _note: Callable[[Message], None]) -> str | None:
        return "SIGTERM"

    console = Console(file=io.StringIO())
    code = carry_out(prepared, RunChoices(**choices), console, work)
    assert isinstance(console.file, io.StringIO)
    return code, console.file.getvalue()


def test_quiet_says_on_stderr_what_is_not_done(
    prepared: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cron mails what is printed there: nothing when all is done."""
    code, shown = end_of(prepared, quiet=True)
    assert (code, shown) == (EXIT_INTERRUPTED, "")
    said = capsys.readouterr().err
    assert said.startswith("diffbatch: stopped by SIGTERM: 0 of 1 done in ")
    assert said.endswith("diffbatch: run the same command again to go on\n")
    code, shown = end_of(prepared)
    assert (code, capsys.readouterr().err) == (EXIT_INTERRUPTED, "")
    assert shown.startswith("stopped by SIGTERM")


def test_a_profiled_run_says_what_became_of_the_traces(prepared: Prepared) -> None:
    folder = prepared.job.output / "profile"
    folder.mkdir(parents=True)
    (folder / "rank-0.json.gz").write_text("of an earlier run")
    (folder / "notes.txt").write_text("mine")
    (prepared.job.output / "run.json").write_text("{}")
    _, shown = end_of(prepared, profile=True)
    assert shown.endswith("nothing was profiled: the run ended before any rank came to its turns\n")
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    _, shown = end_of(prepared, profile=True, limit=0)
    assert shown.endswith("nothing was profiled: there was nothing to make\n")
    for rank in (0, 10, 2):
        (folder / f"rank-{rank}.json.gz").write_text("")
    found = Traces(root=prepared.job.output, wanted=True, had_work=True)
    assert found.as_dict()["profile"] == [f"profile/rank-{r}.json.gz" for r in (0, 2, 10)]
    assert next(found.lines()).startswith("3 traces, one per rank: ")


def test_a_pattern_that_matches_nothing_leaves_no_trace(prepared: Prepared) -> None:
    with pytest.raises(JobError, match="no request matches 'dog'"):
        end_of(prepared, only=["dog"])
    assert not prepared.job.output.exists()


def test_quiet_says_nothing_when_nothing_is_selected(
    prepared: Prepared, capsys: pytest.CaptureFixture[str]
) -> None:
    code, shown = end_of(prepared, quiet=True, limit=0)
    assert (code, shown, capsys.readouterr().err) == (EXIT_OK, "", "")
