"""What a job runs with: degrees given or found, --memory-gb, --devices, and what is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from diffbatch.errors import JobError, PlanError
from diffbatch.job.overrides import CommandLine
from diffbatch.launch import devices
from diffbatch.launch.choose import Choice, choose, choose_layout
from diffbatch.launch.group import _environment
from diffbatch.launch.prepare import Machine, Prepared, prepare
from diffbatch.plan.layout import Layout
from tests.unit.tiny_headers import HALF, ONE_BLOCK, SMALL, WHOLE, make_wan_on_cpu

UP_TO_4 = [
    *("pp 1 tp 1", "pp 2 tp 1", "pp 1 tp 2"),
    *("pp 4 tp 1", "pp 2 tp 2", "pp 1 tp 4"),
]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_wan_on_cpu(tmp_path, monkeypatch)


def prepared_of(model: Path, machine: Machine | None = None, **keys: Any) -> Prepared:
    dotted = {f"parallel.{name}": value for name, value in keys.items()}
    output = str(model.parent / "out")
    command_line = CommandLine(
        keys={"model": str(model), "output": output, **dotted},
        sets=[f"defaults.{name}={value}" for name, value in SMALL.items()],
    )
    prepared = prepare(None, ["a cat", "a dog"], command_line, machine or Machine())
    list(prepared.reqs())
    return prepared


def gb(num_bytes: int) -> Machine:
    return Machine(memory_gb=num_bytes / 1e9)


def gpus(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(names))


@pytest.mark.parametrize(
    ("budget", "layout", "rejected"),
    [
        (WHOLE, Layout(), []),
        (WHOLE - 1, Layout(pp=2), ["pp 1 tp 1"]),
        (HALF, Layout(pp=2), ["pp 1 tp 1"]),
        (HALF - 1, Layout(pp=4), UP_TO_4[:3]),
        (ONE_BLOCK // 2 + 600, Layout(pp=4, tp=2), [*UP_TO_4, "pp 8 tp 1"]),
    ],
)
def test_auto_takes_the_smallest_group_that_fits(
    model: Path, budget: int, layout: Layout, rejected: list[str]
) -> None:
    choice = choose(prepared_of(model, gb(budget), auto=True, replicas=1), 2)
    assert choice.layout == layout
    names = [f"pp {item.layout.pp} tp {item.layout.tp}" for item in choice.rejected]
    assert names == rejected
    assert all(item.why for item in choice.rejected)


def test_auto_says_why_each_layout_was_rejected(model: Path) -> None:
    choice = choose(prepared_of(model, gb(ONE_BLOCK // 2 + 600), auto=True, replicas=1), 2)
    reasons = {(item.layout.pp, item.layout.tp): item.why for item in choice.rejected}
    assert f"needs {WHOLE} bytes" in reasons[1, 1]
    assert "pp 8 needs at least 8 blocks, the model has 4" in reasons[8, 1]


def test_auto_that_finds_nothing_is_refused_with_every_reason(model: Path) -> None:
    with pytest.raises(PlanError, match=r"up to 8 ranks per replica .*one rank: .*tp 8: "):
        choose(prepared_of(model, gb(100), auto=True), 2)


def test_auto_fills_up_the_devices_with_replicas(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, *"01234567")
    bf16_half = HALF // 2
    prepared = prepared_of(model, gb(bf16_half), auto=True)
    assert choose(prepared, 100).layout == Layout(replicas=4, pp=2)
    assert choose(prepared, 3).layout == Layout(replicas=3, pp=2)
    fixed = prepared_of(model, gb(bf16_half), auto=True, replicas=4)
    assert choose(fixed, 100).layout == Layout(replicas=4, pp=2)
    with pytest.raises(PlanError, match="up to 1 ranks per replica"):
        choose(prepared_of(model, gb(bf16_half), auto=True, replicas=8), 100)


def test_auto_asks_for_the_memory_where_nothing_tells_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, "0", "1")
    monkeypatch.setattr(devices, "_QUERY", ("no-such-program",))
    with pytest.raises(PlanError, match="say it with --memory-gb"):
        choose(prepared_of(model, auto=True), 2)


def test_a_layout_that_does_not_fit_is_refused_with_the_smallest_that_does(model: Path) -> None:
    with pytest.raises(PlanError) as caught:
        choose_layout(prepared_of(model, gb(HALF), replicas=1), 2)
    text = str(caught.value)
    assert f"rank 0 of a replica needs {WHOLE} bytes" in text
    assert text.endswith("the smallest layout that fits: --pp 2")
    assert choose_layout(prepared_of(model, gb(HALF), replicas=1, pp=2), 2) == Layout(pp=2)


def test_other_degrees_stay_as_asked_in_the_advice(model: Path) -> None:
    with pytest.raises(PlanError, match=r"fits: --pp 2 --cfg 2$"):
        choose_layout(prepared_of(model, gb(HALF), replicas=1, cfg=2), 2)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_memory_must_be_a_number_above_0(model: Path, value: float) -> None:
    with pytest.raises(JobError, match="must be a number above 0"):
        choose_layout(prepared_of(model, Machine(memory_gb=value)), 2)


def test_devices_are_refused_without_gpus(model: Path) -> None:
    with pytest.raises(PlanError, match="there is no GPU here that it could name"):
        choose(prepared_of(model, Machine(devices="0,1")), 2)


@pytest.mark.parametrize(
    ("text", "keys", "layout"),
    [
        ("0,1,2,3", {"pp": 2, "replicas": 2}, Layout(replicas=2, pp=2)),
        ("3,2,1,0", {"pp": 2}, Layout(replicas=2, pp=2)),
        ("1", {}, Layout()),
        ("0, 1,2,3", {}, Layout(replicas=4)),
    ],
)
def test_devices_are_as_many_as_ranks_in_the_order_given(
    model: Path, monkeypatch: pytest.MonkeyPatch, text: str, keys: dict[str, int], layout: Layout
) -> None:
    gpus(monkeypatch, *"01234")
    choice = choose(prepared_of(model, Machine(devices=text), **keys), 1)
    names = tuple(name.strip() for name in text.split(","))
    assert choice == Choice(layout=layout, devices=names)
    assert _environment("k", None, choice.devices)["CUDA_VISIBLE_DEVICES"] == ",".join(names)
    assert "CUDA_VISIBLE_DEVICES" not in _environment("k", None, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1,2", "3 devices do not fit"),
        ("0,0", "named twice"),
        ("0,7", "there is no GPU 7; there are 0, 1, 2, 3, 4 .CUDA_VISIBLE_DEVICES"),
        ("0,,1", "empty entry"),
    ],
)
def test_devices_that_do_not_fit_are_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    gpus(monkeypatch, *"01234")
    with pytest.raises(PlanError, match=message):
        choose(prepared_of(model, Machine(devices=text), pp=2), 2)


def test_a_gpus_memory_is_what_nvidia_smi_says_of_the_smallest_that_is_used(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(monkeypatch, "0", "2")

    def answer(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess((), 0, stdout="81559\n24000\n40000\n")

    monkeypatch.setattr(devices.subprocess, "run", answer)
    found = devices.find_budget(2)
    assert found is not None
    assert found.num_bytes == (40000 << 20) - 10**9
    of_one = devices.find_budget(1, ["1"])
    assert of_one is not None
    assert of_one.num_bytes == (24000 << 20) - 10**9


def test_ranks_on_the_cpu_share_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch)
    monkeypatch.setattr(devices, "_available_bytes", lambda: 8 * 10**9)
    found = devices.find_budget(4)
    assert found is not None
    assert found.num_bytes == 2 * 10**9 - 600_000_000
    assert devices.find_budget(100).num_bytes == 0  # type: ignore[union-attr]
