"""The job's scheduler is checked before anything is launched."""

from __future__ import annotations

import inspect
from pathlib import Path

import diffusers
import pytest

from diffbatch.errors import PlanError
from diffbatch.job.overrides import CommandLine
from diffbatch.launch.prepare import prepare
from diffbatch.models.schedulers import _arguments_of, scheduler_problem
from tests.unit.model_kit import make_model


@pytest.mark.parametrize(
    ("choice", "problem"),
    [
        ({}, None),
        ({"name": "UniPCMultistepScheduler"}, None),
        ({"name": "UniPCMultistepScheduler", "flow_shift": 3.0}, None),
        (
            {"name": "UniPCMultistepSheduler"},
            "diffusers has no scheduler 'UniPCMultistepSheduler'; "
            "did you mean 'UniPCMultistepScheduler'?",
        ),
        (
            {"name": "UniPCMultistepScheduler", "flow_shfit": 3.0},
            "UniPCMultistepScheduler takes no 'flow_shfit'; did you mean 'flow_shift'?",
        ),
        (
            {"name": "unipc"},
            "diffusers has no scheduler 'unipc'; did you mean 'UniPCMultistepScheduler'?",
        ),
        (
            {"name": "fast"},
            "diffusers has no scheduler 'fast'; give a class of diffusers.schedulers, such as "
            "UniPCMultistepScheduler",
        ),
    ],
)
def test_a_slip_is_named_with_what_is_nearest(
    choice: dict[str, object], problem: str | None
) -> None:
    assert scheduler_problem(choice) == problem


def test_another_class_of_diffusers_is_no_scheduler() -> None:
    for name in ("SchedulerMixin", "DDIMSchedulerOutput", "AutoencoderKL"):
        found = scheduler_problem({"name": name})
        assert found is not None
        assert found.startswith(f"diffusers has no scheduler '{name}'; ")


@pytest.mark.parametrize(
    "name",
    [
        "FlowMatchEulerDiscreteScheduler",
        "DDIMScheduler",
        "DPMSolverMultistepScheduler",
        "EulerAncestralDiscreteScheduler",
        "LCMScheduler",
    ],
)
def test_the_source_says_what_the_class_takes(name: str) -> None:
    expected = [*inspect.signature(getattr(diffusers, name).__init__).parameters][1:]
    assert _arguments_of(name) == [key for key in expected if key not in {"args", "kwargs"}]


def test_the_job_is_refused_with_the_place(tmp_path: Path) -> None:
    model = make_model(tmp_path / "m")
    job = tmp_path / "job.yaml"
    job.write_text(f"model: {model}\nscheduler: {{name: DDIMScheduler, steps: 3}}\nprompts: [a]\n")
    with pytest.raises(PlanError, match=r"job.yaml:2: DDIMScheduler takes no 'steps'"):
        prepare(job, [], CommandLine())
