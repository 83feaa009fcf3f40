"""Encoding for a whole team: each distinct request text is encoded by one rank and sent to all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from diffusers.modular_pipelines.modular_pipeline import PipelineState

from diffbatch.log import get_logger
from diffbatch.parallel.team import Team
from diffbatch.pipeline.clock import StageClock
from diffbatch.pipeline.composed import ComposedPipeline
from diffbatch.req import Req

_NUM_KEPT = 64  # encodings that later requests may use again; embeddings of one text can be large
_log = get_logger(__name__)

Encoding = dict[str, Any]


class EncodingError(Exception):
    """The rank that encodes this request could not; its log has the cause."""


class TeamEncoder:
    """Runs the encoding stages: the j-th distinct text of a team goes to rank j modulo its size.

    What is remembered depends on the order of requests alone, so every rank remembers the same
    and no rank asks another for what that one has forgotten.
    """

    def __init__(self, pipeline: ComposedPipeline, team: Team) -> None:
        self._pipeline = pipeline
        self._team = team
        self._kept: OrderedDict[Any, Encoding] = OrderedDict()
        self._num_encoded = 0

    def encode(self, reqs: Sequence[Req], clock: StageClock) -> list[PipelineState | Exception]:
        """A state with its encodings for each request, or why there is none.

        All ranks of the team must call it with the same requests. Each rank first encodes all that
        is its own, so that they work at the same time, then results are exchanged.
        """
        places: dict[Any, int] = {}
        for req in reqs:
            key = _text_key(req)
            if key not in self._kept and key not in places:
                places[key] = self._num_encoded % self._team.size
                self._num_encoded += 1
        own: dict[Any, Encoding | Exception] = {}
        for req in reqs:
            key = _text_key(req)
            if key not in own and places.get(key) == self._team.place:
                own[key] = self._try_encode(req, clock)
        for key, place in places.items():
            self._exchange(key, place, own)
        states = [self._state(req, own) for req in reqs]
        while len(self._kept) > _NUM_KEPT:
            self._kept.popitem(last=False)
        return states

    def _try_encode(self, req: Req, clock: StageClock) -> Encoding | Exception:
        try:
            return self._encode(req, clock)
        except Exception as error:  # noqa: BLE001 a failed request must not end the run
            _log.error("encoding of request %s failed", req.id, exc_info=error)
            return error

    def _encode(self, req: Req, clock: StageClock) -> Encoding:
        """What the encoding stages add to a fresh state of `req`, or change in it."""
        state = self._pipeline.state(req)
        before = dict(state.values)
        stages = self._pipeline.stages(self._pipeline.inputs(req))
        components = self._pipeline.encoding_components
        for stage in (stages.text, stages.image):
            with clock.measure(stage.name):
                stage(components, state)
        return {name: v for name, v in state.values.items() if v is not before.get(name)}

    def _exchange(self, key: Any, place: int, own: dict[Any, Encoding | Exception]) -> None:
        mine = own.get(key)
        shared = self._team.share(None if isinstance(mine, Exception) else mine, place)
        if shared is not None:
            self._kept[key] = shared
        elif key not in own:
            own[key] = EncodingError(f"rank {self._team.ranks[place]} could not encode it")

    def _state(self, req: Req, own: dict[Any, Encoding | Exception]) -> PipelineState | Exception:
        key = _text_key(req)
        encoding = self._kept.get(key)
        if encoding is None:
            error = own[key]
            assert isinstance(error, Exception)
            return error
        self._kept.move_to_end(key)
        state = self._pipeline.state(req)
        state.values.update(encoding)
        return state


def _text_key(req: Req) -> Any:
    """Requests with equal keys have equal encodings. With an image, the seed may matter too."""
    return (req.prompt, req.params, req.seed if req.params.image is not None else None)
