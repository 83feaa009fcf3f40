"""`diffbatch plan`: what it counts, what it shows, and that texts are only texts to it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from diffbatch.cli.main import app
from diffbatch.errors import JobError, PlanError
from diffbatch.job.overrides import CommandLine
from diffbatch.launch import prepare as prepare_module
from diffbatch.launch.plan import NUM_FIRST, make_plan
from diffbatch.launch.prepare import Prepared, prepare
from tests.unit.model_kit import make_model

JOB = """
model: {model}
output: out
defaults: {{height: 64, width: 64, num_frames: 1, num_inference_steps: 4}}
prompts:
- a cat
- {{prompt: "a {{color}} dog", with: {{color: [red, blue]}}, seed: [1, 2]}}
- {{prompt: a cat, guidance_scale: 1.0, negative_prompt: blurry}}
- a cat
- {{prompt: a clip, num_frames: 5, fps: 8}}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    make_model(tmp_path / "m")
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(model="m"))
    return path


def prepared_of(job: Path | None, *prompts: str, **keys: Any) -> Prepared:
    dotted = {name.replace("__", "."): value for name, value in keys.items()}
    return prepare(job, prompts, CommandLine(keys=dotted))


def test_plan_counts_what_a_run_would_do(job: Path) -> None:
    plan = make_plan(prepared_of(job, parallel__replicas=3))
    assert json.loads(json.dumps(plan)) == plan
    assert (plan["requests"], plan["duplicates"], plan["micro_batches"]) == (8, 1, 8)
    assert plan["ignored"] == ["negative_prompt"]
    assert len(plan["first"]) == NUM_FIRST
    assert plan["first"][0]["file"] == "00000-a-cat-0.png"
    assert plan["layout"]["replicas"] == 3
    assert [rank["replicas"] for rank in plan["layout"]["ranks"]] == [0, 1, 2]
    assert plan["model"]["weight_bytes"] == 96
    assert plan["resume"] is None
    assert not (job.parent / "out").exists()
    shapes = {
        (s["params"]["num_frames"], s["branches"]): s["micro_batches"] for s in plan["shapes"]
    }
    assert shapes == {(1, 2): 6, (1, 1): 1, (5, 2): 1}


def test_batch_size_makes_fewer_micro_batches(job: Path) -> None:
    plan = make_plan(prepared_of(job, batch_size=4))
    assert (plan["batch_size"], plan["micro_batches"]) == (4, 4)


def test_model_of_the_job_is_relative_to_it_and_that_of_the_command_line_to_here(
    job: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path_factory.mktemp("here")
    make_model(here / "m", "StableDiffusion3Pipeline")
    monkeypatch.chdir(here)
    assert prepared_of(job).facts.class_name == "WanPipeline"
    given = prepare(None, ["a cat"], CommandLine(keys={"model": "m", "output": "o"}))
    assert given.facts.class_name == "StableDiffusion3Pipeline"
    sd3 = prepare(
        job, [], CommandLine(keys={"model": "m"}, params={"num_frames": 1})
    )  # the job lies elsewhere
    assert sd3.facts.class_name == "StableDiffusion3Pipeline"


def test_a_model_that_is_nowhere_is_said_to_be_in_neither_place(
    job: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(here)
    with pytest.raises(PlanError) as caught:
        prepared_of(job, model="nope")
    assert f"there is no folder {here}/nope nor {job.parent}/nope; give" in str(caught.value)
    with pytest.raises(PlanError) as caught:
        prepare(None, ["a"], CommandLine(keys={"model": "nope"}))
    assert f"there is no folder {here}/nope; give" in str(caught.value)


def test_one_of_a_thing_is_not_plural(job: Path) -> None:
    found = CliRunner().invoke(app, ["plan", str(job), "--limit", "1"], catch_exceptions=False)
    assert found.output.startswith("1 request (0 repeated), 1 micro-batch (batch_size 1) -> ")


HOSTILE = '[red]no[/blue] [/] :cat: \x1b[31mred\x1b]0;title\x07 "q"'


def test_hostile_texts_are_shown_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich markup, emoji names and terminal codes in prompts, names and the model's own files."""
    monkeypatch.setenv("COLUMNS", "200")
    model = make_model(tmp_path / "m[/red]")
    index = json.loads((model / "model_index.json").read_text())
    index["vae"][1] = "[/] :dog:"
    (model / "model_index.json").write_text(json.dumps(index))
    (tmp_path / "p.txt").write_text(f"{HOSTILE}\n")
    job = tmp_path / "job.yaml"
    job.write_text("model: 'm[/red]'\noutput: 'out[/b]'\nprompts:\n- {file: p.txt}\n")
    result = CliRunner().invoke(app, ["plan", str(job)], catch_exceptions=False)
    assert result.exit_code == 0
    for text in ("[red]no[/blue] [/] :cat:", "m[/red]", "out[/b]", "[/] :dog:"):
        assert text in result.output
    assert "\x07" not in result.output
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;]*m", "", result.output), "only rich's own styles"
    assert "\x1b[31mred" not in result.output


@pytest.mark.parametrize(("num", "dtype"), [(0, "float32"), (2, "bfloat16")])
def test_auto_dtype_is_a_type_before_ids_are_made(
    job: Path, monkeypatch: pytest.MonkeyPatch, num: int, dtype: str
) -> None:
    """A job that began on a CPU and goes on on a GPU must not mix the pixels of both."""
    monkeypatch.setattr(prepare_module, "num_gpus", lambda: num)
    prepared = prepared_of(job)
    assert prepared.job.spec.dtype == dtype
    ids = [req.id for req in prepared.reqs()]
    assert ids == [req.id for req in prepared_of(job, dtype=dtype).reqs()]
    assert ids[0] != next(prepared_of(job, dtype="float16").reqs()).id


def test_plan_takes_the_options_of_a_run(job: Path) -> None:
    """So that the very command line of a run can be looked at first."""
    plan_options, run_options = (
        {option for param in get_command(app).commands[name].params for option in param.opts}
        for name in ("plan", "run")
    )
    own = {"--fresh", "--retry-failed", "--max-restarts", "--threads", "--quiet", "-q", "--profile"}
    assert run_options - plan_options == own
    assert plan_options <= run_options
    options = [
        "--height",
        "32",
        "--num-inference-steps",
        "2",
        "--seed",
        "5",
        "--guidance-scale",
        "1",
    ]
    found = planned(job, *options, "--negative-prompt", "x", "--num-outputs-per-prompt", "2")
    assert found["requests"] == 12
    assert (found["first"][0]["seed"], found["first"][1]["seed"]) == (5, 6)
    params = found["shapes"][0]["params"]
    assert (params["height"], params["num_inference_steps"]) == (32, 2)


def test_only_and_limit_choose_what_the_plan_counts(job: Path) -> None:
    dogs = planned(job, "--only", "dog", "--set", "batch_size=8")
    assert (dogs["requests"], dogs["micro_batches"]) == (4, 1)
    assert all("dog" in req["prompt"] for req in dogs["first"])
    assert planned(job, "--limit", "3")["requests"] == 3
    with pytest.raises(JobError, match="no request matches 'zebra'"):
        planned(job, "--only", "zebra")


def planned(job: Path, *options: str) -> dict[str, Any]:
    arguments = ["plan", str(job), *options, "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_a_partition_without_pipeline_ranks_is_refused(job: Path) -> None:
    with pytest.raises(PlanError, match="4,4 shares blocks out over pipeline ranks, and pp is 1"):
        make_plan(prepared_of(job, parallel__pp_partition="4,4"))
