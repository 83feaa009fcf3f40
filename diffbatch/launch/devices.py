"""What devices this machine has and how much they hold, found without torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from diffbatch.errors import PlanError
from diffbatch.plan.facts import ModelFacts
from diffbatch.plan.memory import Budget

_NVIDIA = Path("/proc/driver/nvidia/gpus")
_RANK_OVERHEAD_BYTES = 600_000_000  # resident size of torch and diffusers before any weight
_GPU_OVERHEAD_BYTES = 1_000_000_000  # CUDA's context and NCCL's buffers
_MEMINFO = Path("/proc/meminfo")
_QUERY = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
_QUERY_TIMEOUT_S = 20
_ACTIVATION_SHARE = 0.3  # of the weights, set aside for activations on the CPU


def num_gpus() -> int:
    """GPUs that CUDA would show to a process started now."""
    visible = visible_gpus()
    if visible is not None:
        return len(visible)
    return len(list(_NVIDIA.iterdir())) if _NVIDIA.is_dir() else 0


def visible_gpus() -> tuple[str, ...] | None:
    """The names in CUDA_VISIBLE_DEVICES; None where it is not set, and all GPUs are visible."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    names = (name.strip() for name in visible.split(","))
    return tuple(name for name in names if name not in {"", "-1"})


def check_devices(text: str) -> tuple[str, ...]:
    """The GPUs that `--devices` names. PlanError where this machine does not have them.

    `parse_devices` checks the text itself.
    """
    names = tuple(name.strip() for name in text.split(","))
    total, visible = num_gpus(), visible_gpus()
    if total == 0:
        raise PlanError(
            "there is no GPU here that it could name; leave --devices out, ranks on the CPU need "
            "no device",
            place="--devices",
        )
    if visible is None:
        unknown = [name for name in names if name.isdecimal() and int(name) >= total]
        known = f"0 to {total - 1}" if total > 1 else "0"
    else:
        unknown = [name for name in names if name and name not in visible]
        known = f"{', '.join(visible)} (CUDA_VISIBLE_DEVICES)"
    if unknown:
        raise PlanError(
            f"there is no GPU {', '.join(unknown)}; there are {known}", place="--devices"
        )
    return names


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


def find_budget(world_size: int, devices: Sequence[str] | None = None) -> Budget | None:
    """What each of `world_size` ranks may fill here; None where that cannot be found out.

    Of a GPU, its memory without what CUDA takes; on the CPU, an equal share of the memory that is
    free, without what a process takes before any weight.
    """
    if num_gpus() == 0:
        share = _available_bytes() // world_size - _RANK_OVERHEAD_BYTES
        return Budget(num_bytes=max(share, 0), source=f"1/{world_size} of the free memory")
    of_gpus = _gpu_bytes()
    names = devices if devices is not None else visible_gpus()
    if names is not None and all(name.isdecimal() for name in names):
        of_gpus = [of_gpus[int(name)] for name in names if int(name) < len(of_gpus)]
    if not of_gpus:
        return None
    return Budget(num_bytes=min(of_gpus) - _GPU_OVERHEAD_BYTES, source="the smallest GPU")


def _gpu_bytes() -> list[int]:
    """The memory of every GPU in nvidia-smi's order; empty where it does not answer."""
    try:
        done = subprocess.run(
            _QUERY, capture_output=True, text=True, check=True, timeout=_QUERY_TIMEOUT_S
        )
        return [int(line) << 20 for line in done.stdout.split()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def _available_bytes() -> int:
    """Memory that processes can get without swapping."""
    if _MEMINFO.is_file():
        for line in _MEMINFO.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
