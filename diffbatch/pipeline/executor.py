"""ParallelExecutor: keeps micro-batches in flight and steps them in turn, in step with its team."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.guiders.guider_utils import BaseGuidance
from diffusers.modular_pipelines.modular_pipeline import PipelineState

from diffbatch.errors import describe
from diffbatch.log import get_logger
from diffbatch.models.loading import TRANSFORMERS
from diffbatch.parallel.lane import Lane
from diffbatch.parallel.proxies import LaneGuider, LaneTransformer
from diffbatch.parallel.team import Team
from diffbatch.parallel.wire import CommError
from diffbatch.pipeline.clock import Mark, StageClock, StageLedger, peak_memory_bytes
from diffbatch.pipeline.composed import ComposedPipeline
from diffbatch.pipeline.encoder import TeamEncoder
from diffbatch.pipeline.flight import Failure, Finished, Flight, Turn
from diffbatch.pipeline.join import Encoded, groups_of_equal_shape, join
from diffbatch.pipeline.reuse import Memo, TextReuse
from diffbatch.req import MicroBatch, OutputBatch

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A micro-batch that is being admitted; `number` counts them, the same on every rank."""

    key: str
    batch: MicroBatch
    number: int


class ParallelExecutor:
    """Runs the stages of a replica. Every rank makes the same calls in the same order.

    `admit` micro-batches, then take turns; one turn is one denoise step of everything in flight. A
    micro-batch that raises on a rank is reported by that rank as a `Failure`; whoever leads the
    team then tells all ranks to `drop` it. Until then the rank plays along with stand-ins.
    """

    def __init__(
        self, pipeline: ComposedPipeline, device: torch.device, team: Team, mark: Mark = nullcontext
    ) -> None:
        self.ledger = StageLedger(device, team.traffic.waiting, mark)
        self._pipeline = pipeline
        self._device = device
        self._team = team
        self._encoder = TeamEncoder(pipeline, team)
        self._reuse = TextReuse(pipeline.transformers)
        self._flights: list[Flight] = []
        self._landed: list[Flight] = []  # waiting for their decoder's attention
        self._num_admitted = 0
        self._turn = Turn()

    @property
    def num_in_flight(self) -> int:
        """Micro-batches that are not decoded yet."""
        return len(self._flights) + len(self._landed)

    @property
    def num_stepping(self) -> int:
        """Micro-batches between first and last step."""
        return len(self._flights)

    @property
    def steps(self) -> tuple[int, int]:
        """(taken, in all) over everything in flight."""
        loops = [flight.loop for flight in self._flights]
        return sum(loop.done for loop in loops), sum(len(loop.steps) for loop in loops)

    @property
    def steps_left(self) -> int | None:
        """Of the micro-batch that has the fewest steps left; None when none is between steps."""
        loops = [flight.loop for flight in self._flights]
        return min((len(loop.steps) - loop.done for loop in loops), default=None)

    def admit(self, batches: Sequence[tuple[str, MicroBatch]]) -> None:
        """Encode micro-batches, each under a key of its own, and put them in flight."""
        with torch.inference_mode():
            self._admit(batches)

    def drop(self, keys: Sequence[str]) -> None:
        """Forget micro-batches, between two turns. Keys that are not in flight are no mistake."""
        for flight in self._flights:
            if flight.key in keys and flight.lane is not None:
                flight.lane.drain()
        for flight in self._landed:
            if flight.key in keys:
                self._fetch_finals(flight)
        self._flights = [flight for flight in self._flights if flight.key not in keys]
        self._landed = [flight for flight in self._landed if flight.key not in keys]

    def turn(self) -> Turn:
        """One denoise step of each micro-batch in flight, then what is due for decoding."""
        with torch.inference_mode():
            due, self._landed = self._landed, []
            lanes = [flight.lane for flight in self._flights if flight.lane is not None]
            self._team.traffic.begin_round(lanes)
            for flight in self._flights:
                self._step(flight)
            ended = [flight for flight in self._flights if flight.loop.finished]
            self._flights = [flight for flight in self._flights if not flight.loop.finished]
            for flight in ended:
                self._land(flight)
            # One turn later than it landed, so that the decoder does not wait for the last rank.
            if self._team.size == 1 or not self._flights:
                due, self._landed = due + self._landed, []
            for flight in due:
                self._decode(flight)
        turn, self._turn = self._turn, Turn()
        return turn

    def flush(self) -> None:
        """Wait until every send of this rank is out."""
        self._team.flush()

    # -- admission ----------------------------------------------------------------------------

    def _admit(self, batches: Sequence[tuple[str, MicroBatch]]) -> None:
        clock = StageClock(self.ledger)
        states = self._encoder.encode([r for _, batch in batches for r in batch.reqs], clock)
        num_encoded = max(len(states), 1)
        flights: list[Flight] = []
        errors: dict[str, Exception] = {}
        at = 0
        for key, batch in batches:
            entry = _Entry(key, batch, self._num_admitted)
            self._num_admitted += 1
            mine, at = states[at : at + len(batch.reqs)], at + len(batch.reqs)
            share = clock.share(len(batch.reqs) / num_encoded)
            try:
                flights += self._begin(entry, mine, share)
            except CommError:
                raise
            except Exception as error:  # noqa: BLE001 a failed request must not end the run
                errors[key] = error
        failed = self._team.any_failed([key in errors for key, _ in batches])
        lost = {key for (key, _), is_lost in zip(batches, failed, strict=True) if is_lost}
        for key in errors:
            self._fail(key, errors[key])
        self._flights += [flight for flight in flights if flight.key not in lost]

    def _begin(
        self, entry: _Entry, states: Sequence[PipelineState | Exception], clock: StageClock
    ) -> list[Flight]:
        for state in states:
            if isinstance(state, Exception):
                raise state
        encoded = [state for state in states if isinstance(state, PipelineState)]
        groups = groups_of_equal_shape(list(zip(entry.batch.reqs, encoded, strict=True)))
        return [
            self._take_off(entry, part, group, clock.share(1 / len(groups)))
            for part, group in enumerate(groups)
        ]

    def _take_off(
        self, entry: _Entry, part: int, group: list[Encoded], clock: StageClock
    ) -> Flight:
        reqs = tuple(req for req, _ in group)
        state = join([state for _, state in group])
        stages = self._pipeline.stages(self._pipeline.inputs(reqs[0]))
        generators = state.get("generator")
        if isinstance(generators, torch.Generator):
            generators = [generators]
        components = self._pipeline.components(reqs[0].params, generators)
        before = dict(state.values)
        with clock.measure(stages.denoise.name):
            loop = stages.denoise.begin(components, state)
        flight = Flight(
            key=entry.key,
            batch=entry.batch,
            reqs=reqs,
            stages=stages,
            components=components,
            state=state,
            loop=loop,
            clock=clock,
            decode_place=(entry.number + part) % self._team.size,
            before=before,
        )
        if self._team.has_lanes:
            flight.lane = self._make_lane(f"{entry.key}.{part}", components)
        return flight

    def _make_lane(self, key: str, components: Any) -> Lane:
        """Put a lane between this micro-batch and its transformers and guiders."""
        guiders = {n: c for n, c in components.components.items() if isinstance(c, BaseGuidance)}
        num_calls = max((guider.num_conditions for guider in guiders.values()), default=1)
        lane = Lane(self._team.traffic, key, num_calls)
        for name, guider in guiders.items():
            setattr(components, name, LaneGuider(guider, lane))
        for name in TRANSFORMERS:
            model = getattr(components, name, None)
            if model is not None:
                setattr(
                    components, name, LaneTransformer(self._pipeline.cuts.get(name, model), lane)
                )
        return lane

    # -- stepping -----------------------------------------------------------------------------

    def _step(self, flight: Flight) -> None:
        flight.begin_step()
        if flight.failed:
            flight.skip_step()
            return
        done = flight.loop.done
        try:
            with flight.clock.measure(flight.stages.denoise.name), self._reuse.using(flight.memo):
                flight.step()
        except CommError:
            raise
        except Exception as error:  # noqa: BLE001 a failed request must not end the run
            flight.failed = True
            self._fail(flight.key, error)
            if flight.lane is not None:
                flight.lane.complete_step()
            flight.loop.done = done + 1
            if flight.lane is None:
                self._flights = [other for other in self._flights if other is not flight]

    def _land(self, flight: Flight) -> None:
        """After the last step: the final latents go to the rank that decodes them."""
        flight.memo = Memo()  # decoding needs the memory
        if flight.lane is not None:
            flight.lane.close()
        if not flight.failed:
            try:
                with flight.clock.measure(flight.stages.denoise.name):
                    flight.stages.denoise.end(flight.components, flight.state, flight.loop)
            except Exception as error:  # noqa: BLE001 a failed request must not end the run
                flight.failed = True
                self._fail(flight.key, error)
        team = self._team
        moves = team.has_lanes and flight.decode_place != team.final_place
        if moves and team.place == team.final_place:
            tensors = [flight.state.get(name) for name in flight.finals()]
            team.send_final(
                _final_key(flight), None if flight.failed else tensors, flight.decode_place
            )
        if team.place == flight.decode_place:
            self._landed.append(flight)

    def _decode(self, flight: Flight) -> None:
        try:
            if not self._fetch_finals(flight) or flight.failed:
                return
            with flight.clock.measure(flight.stages.decode.name):
                frames, errors = flight.stages.decode.frames(flight.components, flight.state)
        except CommError:
            raise
        except Exception as error:  # noqa: BLE001 a failed request must not end the run
            self._fail(flight.key, error)
            return
        output = OutputBatch(
            reqs=flight.reqs,
            frames=tuple(frames),
            errors=tuple(errors),
            stage_s=flight.clock.seconds(),
            peak_memory_bytes=peak_memory_bytes(self._device),
        )
        self._turn.finished.append(Finished(key=flight.key, batch=flight.batch, output=output))

    def _fetch_finals(self, flight: Flight) -> bool:
        """Get the final latents if another rank has them; False when the micro-batch failed."""
        team = self._team
        if team.has_lanes and team.place != team.final_place:
            names = flight.finals()
            found = team.take_final(_final_key(flight), [flight.state.get(name) for name in names])
            if found is None:
                return False
            for name, tensor in zip(names, found, strict=True):
                flight.state.set(name, tensor)
        # A rank that failed says so before it sends any stand-in: what came from it is known bad.
        return not team.notes.ready(f"{flight.key}/failed") if team.size > 1 else True

    def _fail(self, key: str, error: Exception) -> None:
        _log.error("micro-batch %s failed", key, exc_info=error)
        if self._team.size > 1:
            self._team.notes.write(f"{key}/failed", True)
        text = describe(error)
        out_of_memory = isinstance(error, torch.OutOfMemoryError)
        if out_of_memory:
            error.__traceback__ = None  # it holds the frames, and with them the tensors
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
        self._turn.failures.append(Failure(key=key, error=text, out_of_memory=out_of_memory))


def _final_key(flight: Flight) -> str:
    """A micro-batch may fly in several groups of equal shape, each with finals of its own."""
    return f"{flight.key}/{flight.reqs[0].id}"
