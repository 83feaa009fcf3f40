"""TextReuse: what a transformer computes from the text alone is computed once per micro-batch.

A denoise loop calls the transformer with the same text embeddings at every step, and cross
attention projects them to the same keys and values each time. With 64 tokens of picture and 512
of text that is half of the work. Nothing here knows a model: modules that take one tensor give
the same result for the same tensor, so results hang on the tensor that they came from.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from diffbatch.plan.activations import KEPT_TEXT_BYTES

_TEXT = "encoder_hidden_states"  # what every diffusers transformer calls its text embeddings
_MARK = "_diffbatch_of_text"
_MIN_SHARE = 1 / 20  # of the linear layers' work; below it, the memory is worth more


@dataclass(slots=True)
class _Budget:
    """Bytes that one micro-batch may still keep."""

    left_bytes: int = KEPT_TEXT_BYTES


@dataclass(slots=True)
class _Origin:
    """The mark of a tensor that depends on the text alone, with what came from it by module.

    Refers to nothing that refers back to it: what is kept must go without a garbage collection.
    """

    budget: _Budget | None  # None: only counted, nothing is kept
    results: dict[int, Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Memo:
    """What one micro-batch keeps from step to step; it goes when the micro-batch goes."""

    texts: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # id -> itself, marked
    budget: _Budget = field(default_factory=_Budget)

    def marked(self, text: Tensor) -> Tensor:
        """A view of `text` on which results may hang: encodings outlive the micro-batch."""
        known = self.texts.get(id(text))
        if known is None:
            known = self.texts[id(text)] = (text, _mark(text.view_as(text), _Origin(self.budget)))
        return known[1]


@dataclass(slots=True)
class _Tally:
    """Multiplications of the linear layers in one forward: all, and those of the text alone."""

    all: int = 0
    of_text: int = 0

    def add(self, num: int, *, of_text: bool) -> None:
        self.all += num
        self.of_text += num if of_text else 0

    @property
    def is_worth_it(self) -> bool:
        return self.of_text >= _MIN_SHARE * self.all > 0


class TextReuse:
    """Watches transformers and keeps what each micro-batch's text alone leads to.

    The results are the very tensors of the first time, so pixels stay the same bit for bit. The
    first forward of a new pair of shapes only counts whether that would pay. Used by the
    `ParallelExecutor`: `using` a micro-batch's `Memo` around its steps.
    """

    def __init__(self, transformers: Iterable[nn.Module]) -> None:
        self._active: Memo | None = None
        self._tallies: dict[Any, _Tally] = {}
        self._counting: _Tally | None = None
        self.num_reused = 0  # module calls that were not made again
        for transformer in transformers:
            transformer.register_forward_pre_hook(self._enter, with_kwargs=True)
            for module in transformer.modules():
                if module is not transformer and _takes_one_tensor(module):
                    self._watch(module)

    @contextmanager
    def using(self, memo: Memo) -> Iterator[None]:
        """Forwards inside the block belong to the micro-batch of `memo`."""
        self._active = memo
        try:
            yield
        finally:
            self._active = self._counting = None

    def _enter(
        self, transformer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        text = kwargs.get(_TEXT)
        self._counting = None
        if self._active is None or not isinstance(text, Tensor):
            return None
        key = (id(transformer), text.shape, _shapes(args, kwargs))
        tally = self._tallies.get(key)
        if tally is None:
            self._counting = self._tallies[key] = _Tally()
            text = _mark(text.view_as(text), _Origin(None))
        elif tally.is_worth_it:
            text = self._active.marked(text)
        else:
            return None
        return args, {**kwargs, _TEXT: text}

    def _watch(self, module: nn.Module) -> None:
        forward, number = module.forward, id(module)
        width = module.in_features if isinstance(module, nn.Linear) else 0

        @functools.wraps(forward)
        def reusing(*args: Any, **kwargs: Any) -> Any:
            origin: _Origin | None = getattr(args[0], _MARK, None) if args else None
            if origin is not None and number in origin.results:
                self.num_reused += 1
                return origin.results[number]
            y = forward(*args, **kwargs)
            if width and self._counting is not None:
                self._counting.add(width * y.numel(), of_text=origin is not None)
            return y if origin is None else _keep(y, number, args[0], origin)

        module.forward = reusing


def _keep(y: Any, number: int, x: Tensor, origin: _Origin) -> Any:
    if not isinstance(y, Tensor) or y is x:
        return y
    budget = origin.budget
    if budget is not None:
        if y.nbytes > budget.left_bytes:
            return y
        budget.left_bytes -= y.nbytes
        origin.results[number] = y
    return _mark(y, _Origin(budget))


def _mark(tensor: Tensor, origin: _Origin) -> Tensor:
    setattr(tensor, _MARK, origin)
    return tensor


def _takes_one_tensor(module: nn.Module) -> bool:
    parameters = list(inspect.signature(module.forward).parameters.values())
    return len(parameters) == 1 and parameters[0].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Size, ...]:
    values = [*args, *(kwargs[name] for name in sorted(kwargs))]
    return tuple(value.shape for value in values if isinstance(value, Tensor))
