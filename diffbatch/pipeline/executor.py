"""ParallelExecutor: keeps micro-batches in flight and steps them in turn."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.modular_pipelines.modular_pipeline import PipelineState

from diffbatch.log import get_logger
from diffbatch.pipeline.clock import StageClock, peak_memory_bytes
from diffbatch.pipeline.composed import ComposedPipeline, Stages
from diffbatch.pipeline.denoising import DenoiseLoop
from diffbatch.pipeline.stage import Components
from diffbatch.req import MicroBatch, OutputBatch, Req

_log = get_logger(__name__)


@dataclass(slots=True)
class _Flight:
    """One micro-batch between its first and its last step."""

    reqs: tuple[Req, ...]
    stages: Stages
    components: Components
    state: PipelineState
    loop: DenoiseLoop
    clock: StageClock


class ParallelExecutor:
    """Runs the stages of a replica: admit micro-batches, then `step` until nothing is in flight.

    Every rank of the replica makes the same calls in the same order. A micro-batch that raises
    becomes an `OutputBatch` with errors; the others go on.
    """

    def __init__(self, pipeline: ComposedPipeline, device: torch.device) -> None:
        self._pipeline = pipeline
        self._device = device
        self._flights: deque[_Flight] = deque()
        self._finished: list[OutputBatch] = []

    @property
    def num_in_flight(self) -> int:
        """Micro-batches between first and last step."""
        return len(self._flights)

    @property
    def steps(self) -> tuple[int, int]:
        """(taken, in all) over everything in flight."""
        loops = [flight.loop for flight in self._flights]
        return sum(loop.done for loop in loops), sum(len(loop.steps) for loop in loops)

    def admit(self, batch: MicroBatch) -> None:
        """Encode a micro-batch and put it in flight."""
        self._admit(batch.reqs)

    def step(self) -> list[OutputBatch]:
        """Take one denoise step of the micro-batch whose turn it is; return what is finished."""
        if self._flights:
            flight = self._flights.popleft()
            try:
                self._advance(flight)
            except Exception as error:  # noqa: BLE001 a failed request must not end the run
                self._failed(flight.reqs, error)
        finished, self._finished = self._finished, []
        return finished

    def drop(self) -> None:
        """Forget everything in flight, for a run that was told to stop."""
        self._flights.clear()

    def _admit(self, reqs: tuple[Req, ...]) -> None:
        try:
            with torch.inference_mode():
                flights = self._encode(reqs)
        except Exception as error:  # noqa: BLE001 a failed request must not end the run
            self._failed(reqs, error)
        else:
            self._flights.extend(flights)

    def _encode(self, reqs: tuple[Req, ...]) -> list[_Flight]:
        clock = StageClock(self._device)
        encoded: list[tuple[Req, Stages, PipelineState]] = []
        for req in reqs:
            state = self._pipeline.state(req)
            stages = self._pipeline.stages(self._pipeline.inputs(req))
            components = self._pipeline.encoding_components
            with clock.measure(stages.text.name):
                stages.text(components, state)
            with clock.measure(stages.image.name):
                stages.image(components, state)
            encoded.append((req, stages, state))
        return [self._begin(group, clock) for group in _groups_of_equal_shape(encoded)]

    def _begin(self, group: list[tuple[Req, Stages, PipelineState]], clock: StageClock) -> _Flight:
        reqs = tuple(req for req, _, _ in group)
        stages = group[0][1]
        state = _join([state for _, _, state in group])
        generators = state.get("generator")
        if isinstance(generators, torch.Generator):
            generators = [generators]
        components = self._pipeline.components(reqs[0].params, generators)
        with clock.measure(stages.denoise.name):
            loop = stages.denoise.begin(components, state)
        return _Flight(reqs, stages, components, state, loop, clock)

    def _advance(self, flight: _Flight) -> None:
        stages, clock = flight.stages, flight.clock
        with torch.inference_mode():
            with clock.measure(stages.denoise.name):
                stages.denoise.step(flight.components, flight.loop)
            if not flight.loop.finished:
                self._flights.append(flight)
                return
            with clock.measure(stages.denoise.name):
                stages.denoise.end(flight.components, flight.state, flight.loop)
            with clock.measure(stages.decode.name):
                frames, errors = stages.decode.frames(flight.components, flight.state)
        self._finished.append(
            OutputBatch(
                reqs=flight.reqs,
                frames=tuple(frames),
                errors=tuple(errors),
                stage_s=clock.seconds(),
                peak_memory_bytes=peak_memory_bytes(self._device),
            )
        )

    def _failed(self, reqs: tuple[Req, ...], error: Exception) -> None:
        """Try a micro-batch that ran out of memory again in halves; else record the failure."""
        if isinstance(error, torch.OutOfMemoryError):
            error.__traceback__ = None  # it holds the frames, and with them the tensors
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            if len(reqs) > 1:
                _log.warning("out of memory with %d requests; trying halves", len(reqs))
                half = len(reqs) // 2
                self._admit(reqs[:half])
                self._admit(reqs[half:])
                return
        _log.error("requests %s failed", [req.id for req in reqs], exc_info=error)
        message = f"{type(error).__name__}: {error}"
        self._finished.append(
            OutputBatch(reqs=reqs, frames=(None,) * len(reqs), errors=(message,) * len(reqs))
        )


def _groups_of_equal_shape(
    encoded: Sequence[tuple[Req, Stages, PipelineState]],
) -> list[list[tuple[Req, Stages, PipelineState]]]:
    """Split into runs whose encodings have equal shapes: only those can share a forward."""
    groups = itertools.groupby(encoded, key=lambda item: _shape(item[2]))
    return [list(group) for _, group in groups]


def _shape(state: PipelineState) -> tuple[Any, ...]:
    return tuple(
        (name, tuple(value.shape[1:]), value.dtype)
        for name, value in sorted(state.values.items())
        if isinstance(value, torch.Tensor)
    )


def _join(states: list[PipelineState]) -> PipelineState:
    """One state for several requests: tensors along dim 0, per-request values as lists."""
    first = states[0]
    if len(states) == 1:
        return first
    joined = PipelineState(kwargs_mapping=first.kwargs_mapping)
    for name, value in first.values.items():
        values = [state.get(name) for state in states]
        if isinstance(value, torch.Tensor):
            joined.values[name] = torch.cat(values)
        elif isinstance(value, list):
            joined.values[name] = [item for items in values for item in items]
        elif all(other == value for other in values[1:]) and name != "generator":
            joined.values[name] = value
        else:
            joined.values[name] = values
    return joined
