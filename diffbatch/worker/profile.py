"""TurnProfiler: a torch profiler trace of a few turns of one rank, for `run --profile`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile, record_function

from diffbatch.log import get_logger
from diffbatch.models.loading import TRANSFORMERS
from diffbatch.output.layout import trace_file
from diffbatch.pipeline.clock import Mark
from diffbatch.worker.spec import WorkerSpec

LAST_STEPS = 2  # of a micro-batch: with them recording begins
WARMUP_TURNS = 2
NUM_TURNS = 6  # recorded
_log = get_logger(__name__)


class Window:
    """Which turns are recorded, as the schedule of a torch profiler.

    It opens with the last steps of the rank's first micro-batch. So a few turns show everything
    that a steady state consists of: steps, a micro-batch that is decoded and saved, and the next
    that is encoded and takes its place. It opens before that micro-batch ends even where no turn is
    left to warm up, so the shortest job leaves a trace.
    """

    def __init__(self) -> None:
        self._num_seen = 0
        self._num_recorded = 0
        self._warm = False

    @property
    def is_over(self) -> bool:
        """Whether everything is recorded."""
        return self._num_recorded > NUM_TURNS

    def next(self, steps_left: int | None) -> ProfilerAction:
        """What to do with the next turn, before which some micro-batch has `steps_left` to go."""
        seen, self._num_seen = self._num_seen, self._num_seen + 1
        if self._num_recorded or self._is_due(steps_left, seen):
            self._num_recorded += 1
            if self.is_over:
                return ProfilerAction.NONE
            is_last = self._num_recorded == NUM_TURNS
            return ProfilerAction.RECORD_AND_SAVE if is_last else ProfilerAction.RECORD
        if steps_left is not None and steps_left <= LAST_STEPS + WARMUP_TURNS:
            self._warm = True
        return ProfilerAction.WARMUP if self._warm else ProfilerAction.NONE

    def _is_due(self, steps_left: int | None, num_seen: int) -> bool:
        if steps_left is None:
            return False
        return steps_left == 1 or (steps_left <= LAST_STEPS and num_seen >= WARMUP_TURNS)


class TurnProfiler:
    """Writes `path`, a Chrome trace, when the `Window` has passed or the rank ends in it."""

    def __init__(self, path: Path, device: torch.device) -> None:
        self._path = path
        self._activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            self._activities.append(ProfilerActivity.CUDA)
        self._window = Window()
        self._action = ProfilerAction.NONE
        self._profiler: profile | None = None

    def begin_turn(self, steps_left: int | None) -> None:
        """Start, go on or end as the window says."""
        if self._window.is_over:
            return
        self._action = self._window.next(steps_left)
        if self._profiler is None:
            self._profiler = self._start()
        else:
            self._profiler.step()
        if self._window.is_over:
            self.close()

    def close(self) -> None:
        """Write what there is, if the window is still open."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None

    def _start(self) -> profile:
        profiler = profile(
            activities=self._activities,
            schedule=lambda _step: self._action,
            on_trace_ready=self._save,
            experimental_config=_all_threads(),
        )
        profiler.start()
        return profiler

    def _save(self, profiler: profile) -> None:
        """A trace that cannot be written must not end a run that goes well."""
        temp = self._path.with_name(f".tmp-{self._path.name}")
        try:
            self._path.parent.mkdir(exist_ok=True)
            profiler.export_chrome_trace(str(temp))
            os.replace(temp, self._path)
        except (OSError, RuntimeError) as error:
            _log.error("the trace %s cannot be written: %s", self._path, error)


def profiler_of(
    spec: WorkerSpec, rank: int, device: torch.device, pipeline: Any
) -> tuple[TurnProfiler | None, Mark]:
    """What takes this rank's trace, and what names its parts; both idle without `--profile`."""
    if not spec.profile:
        return None, nullcontext
    mark_forwards(pipeline)
    return TurnProfiler(spec.run_folder / trace_file(rank), device), record_function


def mark_forwards(pipeline: Any) -> None:
    """Give every forward of a transformer a range of its name in the trace."""
    for name in TRANSFORMERS:
        model = getattr(pipeline, name, None)
        if model is not None:
            model.forward = _marked(name, model.forward)


def _marked(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return forward(*args, **kwargs)

    return run


def _all_threads() -> Any:
    """So that saving, which has a thread of its own, is in the trace too."""
    from torch._C._profiler import _ExperimentalConfig

    return _ExperimentalConfig(profile_all_threads=True)
