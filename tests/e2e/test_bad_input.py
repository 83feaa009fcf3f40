"""One test per kind of bad input: exit 2, a message with place and remedy, nothing done."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from diffbatch.cli.main import main
from diffbatch.output.folder import RunFolder
from tests.unit.model_kit import make_model

pytestmark = pytest.mark.e2e


class Place:
    """A folder with a model, a job file and the output that must not appear."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.job = folder / "job.yaml"
        self.output = folder / "out"
        self._capsys = capsys
        make_model(folder / "m")

    def write(self, text: str) -> None:
        """The job file: `text`, with the model and the output in front where it names none."""
        head = "" if "model:" in text else "model: m\n"
        head += "" if "output:" in text else f"output: {self.output}\n"
        sizes = "defaults: {height: 64, width: 64, num_frames: 1}\n"
        head += "" if "defaults:" in text else sizes
        self.job.write_text(head + text, encoding="utf-8")

    def refusal(self, monkeypatch: pytest.MonkeyPatch, *more: str) -> str:
        """What `diffbatch run JOB` says when it ends with code 2, with the folder left out."""
        monkeypatch.setattr(sys, "argv", ["diffbatch", "run", str(self.job), *more])
        with pytest.raises(SystemExit) as caught:
            main()
        captured = self._capsys.readouterr()
        assert caught.value.code == 2, captured.err
        assert captured.out == ""
        assert "Traceback" not in captured.err
        return captured.err.replace(f"{self.folder}/", "")


@pytest.fixture
def place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Place:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.delenv("RANK", raising=False)
    return Place(tmp_path, capsys)


def _empty_file(place: Place) -> None:
    (place.folder / "p.txt").write_text("")
    place.write("prompts:\n- {file: p.txt}")


def _missing_column(place: Place) -> None:
    (place.folder / "p.csv").write_text("Prompt,seed\na cat,1\n")
    place.write("prompts:\n- {file: p.csv, column: Pormpt}")


def _bad_encoding(place: Place) -> None:
    (place.folder / "p.txt").write_bytes(b"a cat\ncaf\xe9\n")
    place.write("prompts:\n- {file: p.txt}")


def _alias_bomb(place: Place) -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    names = "abcdefghi"
    lines += [
        f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in itertools.pairwise(names)
    ]
    place.write("\n".join([*lines, "prompts: *i"]))


def _no_model_index(place: Place) -> None:
    (place.folder / "m" / "model_index.json").unlink()
    place.write("prompts: [a]")


def _pickle_only(place: Place) -> None:
    weights = place.folder / "m" / "vae" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))
    place.write("prompts: [a]")


def _text(text: str) -> Callable[[Place], None]:
    return lambda place: place.write(text)


CASES: dict[str, tuple[Callable[[Place], None], str, str]] = {
    # name: (what is wrong, the place that is named, the rule or the way out)
    "unknown key": (
        _text("formt: png\nprompts: [a]"),
        "job.yaml:4: formt",
        "unknown key 'formt'; did you mean 'format'?",
    ),
    "unknown key of an entry": (
        _text("prompts:\n- {prompt: a, sed: 3}"),
        "job.yaml:5: prompts[0].sed",
        "did you mean 'seed'?",
    ),
    "wrong type": (
        _text("prompts: [a]\ndefaults: {height: tall}"),
        "job.yaml:4: defaults.height",
        "must be a whole number, found 'tall' (text)",
    ),
    "missing prompt file": (
        _text("prompts:\n- {file: nope.txt}"),
        "job.yaml:5",
        "nope.txt: the prompt file does not exist",
    ),
    "empty prompt file": (_empty_file, "job.yaml:5", "p.txt: the prompt file is empty"),
    "missing column": (_missing_column, "job.yaml:5", "no column 'Pormpt', only Prompt, seed"),
    "bad encoding": (_bad_encoding, "p.txt:2", "byte 0xE9 at column 4 is not UTF-8"),
    "names that collide": (
        _text("name: '{slug}'\nprompts: [a cat, a-cat]"),
        "job.yaml:5",
        "requests 0 and 1 would both be called 'a-cat.png'; add {index} or {seed}",
    ),
    "output outside the run folder": (
        _text("name: ../{index}\nprompts: [a]"),
        "job.yaml:4: name",
        "the name leaves the run folder",
    ),
    "no outputs": (
        _text("prompts:\n- {prompt: a, num_outputs_per_prompt: 0}"),
        "job.yaml:5: prompts[0].num_outputs_per_prompt",
        "must be 1 or more, found 0",
    ),
    "size that the model cannot make": (
        _text("prompts:\n- {prompt: a, height: 100}"),
        "job.yaml:5",
        "height 100 is not a multiple of 16, which WanPipeline needs; nearest: 96 or 112",
    ),
    "frames that the model cannot make": (
        _text("prompts:\n- {prompt: a, num_frames: 6}"),
        "job.yaml:5",
        "num_frames 6 is not 4n+1, which WanPipeline needs; nearest: 5 or 9",
    ),
    "model folder without model_index.json": (
        _no_model_index,
        "model m",
        "has no model_index.json, so it is not a diffusers pipeline folder; give the folder",
    ),
    "weights only as pickle": (
        _pickle_only,
        "m/vae",
        "weights only as pickle (diffusion_pytorch_model.bin)",
    ),
    "missing model": (
        _text("model: ./nowhere\nprompts: [a]"),
        "model ./nowhere",
        "give `demo`, a folder with a model_index.json, or a hub id",
    ),
    "alias bomb": (_alias_bomb, "job.yaml:", "alias"),
}


@pytest.mark.parametrize(("spoil", "where", "remedy"), CASES.values(), ids=CASES)
def test_bad_input_is_refused_before_anything_happens(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Place], None],
    where: str,
    remedy: str,
) -> None:
    spoil(place)
    before = sorted(path.name for path in place.folder.rglob("*"))
    said = place.refusal(monkeypatch)
    assert said.startswith("diffbatch: ")
    assert said.count("\n") == 1, said
    assert where in said
    assert remedy in said
    assert sorted(path.name for path in place.folder.rglob("*")) == before
    assert not place.output.exists()


def test_a_missing_image_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("prompts: [{prompt: a, image: cat.png}]")
    said = place.refusal(monkeypatch)
    assert "diffbatch: job.yaml:4: the image does not exist: cat.png\n" in said
    assert "WanPipeline takes no image; leave image out" in said, "the model's word on it as well"
    assert not place.output.exists()


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--set", "defaults.heigth=3"], "did you mean 'height'?"),
        (["--replicas", "none"], "replicas"),
        (["--limit", "0"], "--limit"),
        (["--threads", "0"], "--threads"),
        (["--prompt", "a dog"], "give a job file, or prompts with --prompt"),
        (["--colour"], "--colour"),
        (["--height", "100"], "nearest: 96 or 112"),
    ],
)
def test_a_bad_option_is_refused_before_anything_happens(
    place: Place, monkeypatch: pytest.MonkeyPatch, arguments: list[str], remedy: str
) -> None:
    place.write("prompts: [a]")
    assert remedy in place.refusal(monkeypatch, *arguments)
    assert not place.output.exists()


def test_a_run_folder_in_use_is_refused_with_its_holder(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write("prompts: [a]")
    with RunFolder(place.output, command="diffbatch run other.yaml"):
        before = sorted(path.name for path in place.output.iterdir())
        said = place.refusal(monkeypatch)
        assert sorted(path.name for path in place.output.iterdir()) == before
    assert "out is in use by another run: pid " in said
    assert "(diffbatch run other.yaml); wait for it to end or choose another output" in said
    assert said.count("\n") == 1


def test_a_file_of_somebody_else_is_not_overwritten(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write("prompts: [a cat]")
    place.output.mkdir()
    theirs = place.output / "00000-a-cat-0.png"
    theirs.write_bytes(b"mine")
    said = place.refusal(monkeypatch)
    assert "out/00000-a-cat-0.png: this file is not from diffbatch" in said
    assert [path.name for path in place.output.iterdir()] == [theirs.name]
    assert theirs.read_bytes() == b"mine"


def test_everything_that_is_wrong_is_said_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(
        "prompts:\n- {prompt: a, height: 100}\n- {file: nope.txt}\n- {prompt: b, num_frames: 6}"
    )
    said = place.refusal(monkeypatch)
    assert [line.split(": ")[1] for line in said.splitlines()] == [
        "job.yaml:5",
        "job.yaml:6",
        "job.yaml:7",
    ]
    assert not place.output.exists()
