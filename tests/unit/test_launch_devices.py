"""How many replicas fit this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffbatch.launch import devices
from diffbatch.launch.devices import auto_replicas, num_gpus
from diffbatch.plan.facts import ComponentFacts, ModelFacts
from tests.unit.model_kit import wan_facts

GB = 10**9


def model_of(weight_bytes: int) -> ModelFacts:
    component = ComponentFacts(
        name="transformer", class_name="T", weight_bytes=weight_bytes, num_params=1, dtypes=()
    )
    return wan_facts(components=(component,))


@pytest.mark.parametrize(
    ("visible", "num"),
    [("", 0), ("-1", 0), ("0", 1), ("0,1,3", 3), ("GPU-aa, GPU-bb", 2), (",", 0)],
)
def test_visible_gpus_are_counted(monkeypatch: pytest.MonkeyPatch, visible: str, num: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert num_gpus() == num


def test_without_a_choice_the_driver_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "_NVIDIA", tmp_path / "none")
    assert num_gpus() == 0
    for name in ("0000:01", "0000:02"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(devices, "_NVIDIA", tmp_path)
    assert num_gpus() == 2


@pytest.mark.parametrize(
    ("gpus", "cores", "memory", "weights", "batches", "replicas"),
    [
        (8, 64, 64 * GB, 1 * GB, 100, 8),
        (8, 64, 64 * GB, 1 * GB, 3, 3),
        (0, 4, 64 * GB, 1 * GB, 100, 4),
        (0, 4, 64 * GB, 1 * GB, 2, 2),
        (0, 16, 8 * GB, 1 * GB, 100, 4),
        (0, 16, 1 * GB, 50 * GB, 100, 1),
        (0, 16, 64 * GB, 1 * GB, 0, 1),
    ],
)
def test_one_replica_per_gpu_or_core_as_far_as_memory_and_work_go(
    monkeypatch: pytest.MonkeyPatch,
    gpus: int,
    cores: int,
    memory: int,
    weights: int,
    batches: int,
    replicas: int,
) -> None:
    monkeypatch.setattr(devices, "num_gpus", lambda: gpus)
    monkeypatch.setattr(devices, "num_cores", lambda: cores)
    monkeypatch.setattr(devices, "_available_bytes", lambda: memory)
    assert auto_replicas(model_of(weights), batches) == replicas
