"""What a micro-batch in flight sees in place of transformer and guider, over many ranks."""

from __future__ import annotations

from typing import Any

from diffbatch.parallel.cut import CutModel
from diffbatch.parallel.lane import Lane


class LaneTransformer:
    """A transformer whose calls go through a lane; everything else is the transformer's own."""

    def __init__(self, model: Any, lane: Lane) -> None:
        self._model = model
        self._lane = lane

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output, or a stand-in where another rank has it."""
        return self._lane.forward(self._model, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        model = self._model
        return getattr(model.model if isinstance(model, CutModel) else model, name)


class LaneGuider:
    """A guider that first gathers the branches' predictions, then combines them as it always does.

    The serial formula on the same predictions: the result is the serial one bit for bit.
    """

    def __init__(self, guider: Any, lane: Lane) -> None:
        self._guider = guider
        self._lane = lane

    def __call__(self, data: list[Any]) -> Any:
        """`data`: one block state per branch, in the order of the transformer calls."""
        predictions = self._lane.gather([branch.noise_pred for branch in data])
        for branch, prediction in zip(data, predictions, strict=True):
            branch.noise_pred = prediction
        return self._guider(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guider, name)
