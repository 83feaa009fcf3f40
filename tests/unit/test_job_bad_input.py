"""One row per way to get a job wrong: the message has the place and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffbatch.errors import JobError
from diffbatch.job.load import load_job
from tests.unit.job_kit import make, wrong


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # unknown keys
        ("promts: [a]", "job.yaml:2: promts: unknown key 'promts'; did you mean 'prompts'?"),
        (
            "defaults: {guidence_scale: 4}\nprompts: [a]",
            "job.yaml:2: defaults.guidence_scale: unknown key 'guidence_scale'; "
            "did you mean 'guidance_scale'?",
        ),
        ("defaults:\n  steps: 4\nprompts: [a]", "job.yaml:3: defaults.steps: unknown key 'steps'"),
        ("prompts:\n- {prompt: a, sed: 1}", "job.yaml:3: prompts[0].sed: unknown key 'sed'"),
        ("prompts:\n- {promt: a}", "prompts[0].promt: unknown key 'promt'; did you mean 'prompt'?"),
        ("prompts:\n- {file: a.txt, colum: b}", "prompts[0].colum: unknown key 'colum'"),
        (
            "prompts: [a]\nparallel: {dp: 2}",
            "known keys: replicas, pp, pp_partition, in_flight, cfg",
        ),
        ("prompts: [a]\nheight: 3", "job.yaml:3: height: unknown key 'height'; it belongs under"),
        ("prompts: [a]\nlora: x", "job.yaml:3: lora: unknown key 'lora'; known keys: model, "),
        ("prompts:\n- {prompt: a, limit: 3}", "an entry has either `prompt`, or `file`"),
        ("prompts:\n- {file: a.csv, with: {a: [b]}}", "only an entry with `prompt` takes it"),
        # wrong types and values
        ("prompts: [a]\ndefaults: {height: '512'}", "must be a whole number, found '512' (text)"),
        ("prompts: [a]\ndefaults: {height: 512.0}", "must be a whole number, found 512.0"),
        ("prompts: [a]\ndefaults: {height: true}", "must be a whole number, found true (a truth"),
        ("prompts: [a]\ndefaults: {height: 0}", "defaults.height: must be 1 or more, found 0"),
        ("prompts: [a]\ndefaults: {height: -8}", "defaults.height: must be 1 or more, found -8"),
        ("prompts: [a]\ndefaults: {guidance_scale: .nan}", "must be a finite number, found .nan"),
        ("prompts: [a]\ndefaults: {guidance_scale: x}", "must be a number, found 'x' (text)"),
        ("prompts: [a]\ndefaults: {negative_prompt: [a, b]}", "must be text, found ['a', 'b']"),
        ("prompts: [a]\ndefaults: 3", "job.yaml:3: defaults: must be a mapping, found 3"),
        ("prompts: a", "job.yaml:2: prompts: must be a list, found 'a' (text)"),
        ("prompts: []", "job.yaml:2: prompts: is empty; give at least one"),
        ("output: x", "job.yaml:1: prompts: missing; list the prompts"),
        ("prompts: [a]\noutput: [x]", "output: must be text, found ['x'] (a list)"),
        ("prompts: [a]\ndtype: flaot32", "did you mean 'float32'?"),
        ("prompts: [a]\nformat: jpeg", "found 'jpeg'; did you mean 'jpg'?"),
        (
            "prompts: [a]\nbatch_size: 0",
            "batch_size: must be auto or a whole number from 1 on, found 0",
        ),
        ("prompts: [a]\nscheduler: 3", "must be a class name, or a mapping with the key `name`"),
        (
            "prompts: [a]\nscheduler: {shift: 3}",
            "or a mapping with the key `name`, found {'shift': 3}",
        ),
        ("prompts: [a]\nparallel: {replicas: 0}", "must be auto or a whole number from 1 on"),
        ("prompts: [a]\nparallel: {pp: 0}", "parallel.pp: must be 1 or more, found 0"),
        # seeds and counts
        ("prompts: [a]\ndefaults: {seed: -1}", "write a number from 0 on, such as 0"),
        ("prompts:\n- {prompt: a, seed: null}", "prompts[0].seed: null would draw another seed"),
        ("prompts:\n- {prompt: a, seed: [1, x]}", "from 0 to 2**64-1, found 'x'"),
        ("prompts:\n- {prompt: a, seed: []}", "the list of seeds is empty"),
        (f"prompts:\n- {{prompt: a, seed: {2**64}}}", "whole number from 0 to 2**64-1"),
        (
            f"prompts:\n- {{prompt: a, seed: {2**64 - 1}, num_outputs_per_prompt: 2}}",
            "job.yaml:3: 2 outputs from seed 18446744073709551615 pass the last seed",
        ),
        (
            "prompts:\n- {prompt: a, num_outputs_per_prompt: 0}",
            "job.yaml:3: prompts[0].num_outputs_per_prompt: must be 1 or more, found 0",
        ),
        # prompts that YAML made into something else
        ("prompts:\n- 42", "job.yaml:3: prompts[0]: 42 is a number to YAML"),
        ("prompts:\n- 042", "prompts[0]: 042 is a number to YAML"),
        ("prompts:\n- ~", "prompts[0]: ~ is nothing to YAML"),
        ("prompts:\n-", "prompts[0]: null is nothing to YAML"),
        ("prompts:\n- true", "prompts[0]: true is a truth value to YAML"),
        ("prompts:\n- {red|blue}", "prompts[0]: {red|blue} is a mapping to YAML"),
        ("prompts:\n- a cat: sitting", "{a cat: sitting} is a mapping to YAML, not a text"),
        ("prompts:\n- [a]", "['a'] is a list to YAML, not a text, `prompt` or `file`; quote it"),
        ("prompts:\n- {prompt: 42}", "prompts[0].prompt: must be text, found 42 (a number)"),
        ("prompts:\n- the #1 fan", "job.yaml:3: prompts[0]: YAML takes '#1 fan' for a comment"),
        ("prompts:\n- ''", "job.yaml:3: prompts[0]: the prompt is empty"),
        ("prompts:\n- {prompt: ' '}", "prompts[0].prompt: the prompt is empty"),
        ('prompts:\n- "a\\0b"', "job.yaml:3: the prompt holds a NUL character; remove it"),
        # with
        ("prompts:\n- {prompt: a, with: {a: [x]}}", "the prompt has no {a}; use it or remove it"),
        ("prompts:\n- {prompt: 'a {b}', with: {a: [x]}}", "unknown placeholder {b}"),
        ("prompts:\n- {prompt: '{a} {', with: {a: [x]}}", "a single '{' in the prompt; write '{{'"),
        ("prompts:\n- {prompt: '{a}', with: {a: x}}", "with.a: must be a list, found 'x' (text)"),
        ("prompts:\n- {prompt: '{a}', with: {a: []}}", "prompts[0].with.a: is empty"),
        ("prompts:\n- {prompt: '{a}', with: {a: [1e0]}}", "must be text, found 1e0 (a number)"),
        # files and images
        ("prompts:\n- {file: nope.txt}", "job.yaml:3: nope.txt: the prompt file does not exist"),
        ("prompts:\n- {file: emty.txt}", "did you mean 'empty.txt'?"),
        ("prompts:\n- {file: x/y.txt}", "the prompt file does not exist: no folder "),
        ("prompts:\n- {file: .}", "the prompt file is a folder"),
        ("prompts:\n- {file: empty.txt}", "job.yaml:3: empty.txt: the prompt file is empty"),
        ("prompts:\n- {file: blank.txt}", "blank.txt: there are no prompts in this file"),
        ("prompts:\n- {file: odd.xyz}", "no format has the suffix '.xyz'; add format: txt, csv"),
        ("prompts:\n- {file: a.csv, column: Pormpt}", "a.csv: no column 'Pormpt', only Prompt, x"),
        ("prompts:\n- {file: two.csv}", "which column is the prompt? add column: one of a, b"),
        ("prompts:\n- {prompt: a, image: cat.png}", "job.yaml:3: the image does not exist: cat.p"),
        # sizes and names
        ("prompts: [a]\ndefaults: {height: 60}", "job.yaml:2: height 60 is not a multiple of 8"),
        ("name: '{slug}'\nprompts: [a b, a-b]", "requests 0 and 1 would both be called 'a-b.png'"),
        ("name: ../{index}\nprompts: [a]", "job.yaml:2: name: the name leaves the run folder"),
        ("name: /x/{index}\nprompts: [a]", "a name must stay inside the run folder"),
        ("name: '{indx}'\nprompts: [a]", "unknown field {indx}; did you mean 'index'?"),
        ("name: '{tag}'\nprompts: [a]", "job.yaml:2: name: unknown field {tag}; fields: index"),
        (
            "format: png\nprompts:\n- {prompt: a, num_frames: 5}",
            "job.yaml:4: format png cannot hold 5 frames; use mp4, gif, webm or npy",
        ),
    ],
)
def test_bad_job(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text("\n \n\n")
    (tmp_path / "odd.xyz").write_text("a")
    (tmp_path / "a.csv").write_text("Prompt,x\na,1\n")
    (tmp_path / "two.csv").write_text("a,b\nx,y\n")
    modality = "video" if "num_frames: 5" in text else "image"
    problems = wrong(tmp_path, text, modality=modality)
    assert any(message in problem for problem in problems), problems
    assert all(problem.startswith("job.yaml:") for problem in problems)


def test_everything_is_reported_at_once(tmp_path: Path) -> None:
    text = "dtype: x\ndefaults: {seed: -1, heigth: 3}\nprompts:\n- 42\n- {prompt: a, seed: x}\n"
    assert len(wrong(tmp_path, text)) == 5
    text = "prompts:\n- {file: no.txt}\n- {prompt: a, image: no.png}\n- {file: no.csv}\n"
    assert len(wrong(tmp_path, text)) == 3


def test_a_long_list_of_problems_is_cut(tmp_path: Path) -> None:
    problems = wrong(tmp_path, "prompts:\n" + "- 42\n" * 50)
    assert len(problems) == 21
    assert problems[-1] == "and 30 more"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompts: [a]", "job.yaml:1: model: missing; name a model, such as `model: demo`"),
        ("- a", "a job file is a mapping with `model` and `prompts`"),
        ("", "the job file is empty"),
        ("# nothing\n", "a job file is a mapping"),
    ],
)
def test_not_a_job_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(JobError) as caught:
        load_job(path)
    assert message in str(caught.value)


def test_missing_job_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "promo.yaml").write_text("model: demo")
    with pytest.raises(JobError, match=r"does not exist.*did you mean 'promo.yaml'"):
        load_job(tmp_path / "prmo.yaml")


def test_job_file_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"model: demo\nprompts:\n- caf\xe9\n")
    with pytest.raises(JobError, match=r"job.yaml:3: byte 0xE9 at column 6 is not UTF-8"):
        load_job(path)
    path.write_text("model: demo\n", encoding="utf-16")
    with pytest.raises(JobError, match="this is UTF-16 text; save the job file as UTF-8"):
        load_job(path)


def test_a_large_job_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"#" * (16 * 2**20 + 1))
    with pytest.raises(JobError, match="larger than 16 MiB; put the prompts into a jsonl"):
        load_job(path)


def test_what_yaml_1_1_would_have_changed_is_a_prompt(tmp_path: Path) -> None:
    reqs = make(tmp_path, "prompts: [no, on, 16:9, 2024-01-01, 12:30:45]")
    assert [req.prompt for req in reqs] == ["no", "on", "16:9", "2024-01-01", "12:30:45"]
