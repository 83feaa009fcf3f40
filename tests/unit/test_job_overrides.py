from __future__ import annotations

import re
from pathlib import Path

import pytest

from diffbatch.errors import JobError
from diffbatch.job.load import Job, load_job, load_prompts
from diffbatch.job.overrides import CommandLine
from diffbatch.job.spec import PromptEntry, SchedulerSpec
from tests.unit.job_kit import make, wrong

TEXT = """\
model: demo
defaults: {seed: 1}
prompts:
  - a cat
  - {prompt: a dog, seed: 2}
"""


def load(folder: Path, *sets: str, **keys: object) -> Job:
    path = folder / "promo.yaml"
    path.write_text(TEXT)
    return load_job(path, CommandLine(sets=sets, keys=keys))


def test_sets_change_any_key(tmp_path: Path) -> None:
    job = load(
        tmp_path,
        "defaults.num_inference_steps=4",
        "defaults.guidance_scale=1e0",
        "parallel.pp=2",
        "dtype=float16",
        "scheduler.name=UniPC",
        "scheduler.shift=3.0",
        "prompts.0.seed=[5, 7]",
        "prompts.0.seed.1=6",
        "prompts.1.prompt=42",
        "name={index}",
        "output=a #b: c",
        "revision=null",
        "format='png'",
        "defaults.negative_prompt=",
    )
    spec = job.spec
    assert (spec.defaults.num_inference_steps, spec.defaults.guidance_scale) == (4, 1.0)
    assert spec.defaults.seed == 1
    assert (spec.parallel.pp, spec.dtype, spec.format) == (2, "float16", "png")
    assert isinstance(spec.scheduler, SchedulerSpec)
    assert spec.scheduler.model_extra == {"shift": 3.0}
    first, second = spec.prompts
    assert isinstance(first, PromptEntry)
    assert (first.prompt, first.seed) == ("a cat", [5, 6])
    assert isinstance(second, PromptEntry)
    assert (second.prompt, second.seed) == ("42", 2)
    assert (spec.name, spec.output, spec.revision) == ("{index}", "a #b: c", None)
    assert spec.defaults.negative_prompt == ""


def test_options_with_a_name_of_their_own(tmp_path: Path) -> None:
    job = load(tmp_path, model="./x y", output="o", **{"parallel.replicas": 2})
    assert (job.spec.model, job.output, job.spec.parallel.replicas) == ("./x y", Path("o"), 2)
    with pytest.raises(JobError, match=r"^--replicas: parallel.replicas: must be auto or a whole"):
        load(tmp_path, **{"parallel.replicas": 0})


def test_the_run_folder_is_named_after_the_job(tmp_path: Path) -> None:
    assert load(tmp_path).output == Path("outputs/promo")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("defaults.steps=4", "unknown key 'steps'; did you mean 'num_inference_steps'?"),
        ("defalts.x=1", "unknown key 'defalts'; did you mean 'defaults'?"),
        ("default=1", "unknown key 'default'; did you mean 'defaults'?"),
        ("x", "write key=value, such as defaults.seed=7"),
        ("=x", "write key=value"),
        ("prompts.2.seed=1", "'2' is not an entry of this list, from 0 to 1"),
        ("prompts.x.seed=1", "'x' is not an entry of this list, from 0 to 1"),
        ("prompts.0.steps.x=1", "unknown key 'steps'; did you mean 'num_inference_steps'?"),
        ("prompts.0.sed=1", "prompts[0].sed: unknown key 'sed'; did you mean 'seed'?"),
        ("defaults.seed=[1", "not valid YAML"),
        ("defaults.seed=-1", "write a number from 0 on"),
        ("defaults.height='8'", "must be a whole number, found '8' (text)"),
        ("defaults.seed.x=1", "seed is not a mapping: it has no 'x'"),
        ("batch_size=0", "batch_size: must be auto or a whole number from 1 on, found 0"),
        ("name=../{index}", "name: the name leaves the run folder"),
    ],
)
def test_bad_sets(tmp_path: Path, option: str, message: str) -> None:
    with pytest.raises(JobError) as caught:
        load(tmp_path, option)
    [problem] = caught.value.problems
    assert problem.place == f"--set {option}"
    assert message in problem.message


def test_all_bad_sets_are_reported(tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        load(tmp_path, "x", "y")
    assert len(caught.value.problems) == 2


def test_bad_parameters_of_the_command_line(tmp_path: Path) -> None:
    [problem] = wrong(tmp_path, "prompts: [a]", params={"height": 0})
    assert problem == "--height: must be 1 or more, found 0"
    [req] = make(tmp_path, "prompts: [a]", params={"height": 72, "width": None})
    assert (req.params.height, req.params.width) == (72, 64)


def test_prompts_without_a_job_file() -> None:
    job = load_prompts(["-5 degrees", "--no text--"], CommandLine(keys={"model": "demo"}))
    assert job.spec.prompts == ["-5 degrees", "--no text--"]
    assert job.output.parent == Path("outputs")
    with pytest.raises(JobError, match=r"^--prompt 2: prompts\[1\]: the prompt is empty"):
        load_prompts(["a", " "], CommandLine(keys={"model": "demo"}))
    with pytest.raises(JobError, match="model: missing"):
        load_prompts(["a"], CommandLine())


def test_prompts_alone_have_a_folder_of_their_own() -> None:
    """The same command goes on there; another prompt must not retire what is made."""

    def folder(*prompts: str, **keys: str) -> str:
        job = load_prompts(prompts, CommandLine(keys={"model": "demo", **keys}))
        return str(job.output)

    assert re.fullmatch(r"outputs/a-red-fox-[0-9a-f]{6}", folder("A red fox!"))
    names = {folder("a red fox"), folder("a red fox", "b"), folder("a red fox", "c"), folder("fox")}
    assert len(names) == 4
    assert folder("a red fox", "b") == folder("a red fox", "b")
    assert folder("a", output="o") == "o"


def test_a_forced_value_that_is_wrong_is_said_once(tmp_path: Path) -> None:
    text = "prompts: [a, {prompt: b, num_inference_steps: 2}, c]"
    assert wrong(tmp_path, text, params={"height": 65}) == [
        "--height: height 65 is not a multiple of 8"
    ]


def test_messages_to_a_program_name_no_options() -> None:
    keys = {"model": "demo"}
    for call, place in (
        (CommandLine(keys=keys, params={"height": 0}, is_call=True), "height: must be 1 or more"),
        (CommandLine(keys={**keys, "dtype": "x"}, is_call=True), "dtype: dtype: must be one of"),
        (CommandLine(keys=keys, params={"heigth": 1}, is_call=True), "heigth: unknown key"),
    ):
        with pytest.raises(JobError, match=f"^{place}"):
            load_prompts(["a"], call)
    with pytest.raises(JobError, match=r"^prompt 2: "):
        load_prompts(["a", " "], CommandLine(keys=keys, is_call=True))
