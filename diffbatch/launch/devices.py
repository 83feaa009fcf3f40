"""How many replicas this machine can hold, found without torch."""

from __future__ import annotations

import os
from pathlib import Path

from diffbatch.plan.facts import ModelFacts

_NVIDIA = Path("/proc/driver/nvidia/gpus")
_RANK_OVERHEAD_BYTES = 600_000_000  # resident size of torch and diffusers before any weight
_ACTIVATION_SHARE = 0.3  # of the weights, set aside for activations on the CPU


def num_gpus() -> int:
    """GPUs that CUDA would show to a process started now."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return sum(1 for device in visible.split(",") if device.strip() not in {"", "-1"})
    return len(list(_NVIDIA.iterdir())) if _NVIDIA.is_dir() else 0


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def auto_replicas(facts: ModelFacts, num_batches: int, group_size: int = 1) -> int:
    """As many replicas as GPUs allow; on the CPU as cores and memory allow; never idle ones."""
    if gpus := num_gpus():
        return max(1, min(gpus // group_size, num_batches))
    weights_bytes = facts.weight_bytes * (1 + _ACTIVATION_SHARE)
    fitting = int(_available_bytes() // (_RANK_OVERHEAD_BYTES * group_size + weights_bytes))
    return max(1, min(num_cores() // group_size, fitting, num_batches))


def _available_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
