"""Run a segment of a transformer through the transformer's own `forward`.

Blocks that this rank does not own are replaced by placeholders. The one right before the segment
returns what the real block returned on the previous rank; earlier ones return blanks of the same
structure; after the last owned block the forward is left. So code between blocks runs as written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import nn

from diffbatch.errors import PlanError
from diffbatch.parallel.structure import Handoff, Header, Spec, Value, blank, flatten, spec_of
from diffbatch.plan.chain import BlockChain

NAN = float("nan")


class CutModel:
    """A transformer of which this process holds the blocks `own` of `chain` and all the rest.

    The model is changed in place, and called through `run` only from now on. Weights of other
    ranks' blocks are dropped.
    """

    def __init__(self, model: nn.Module, chain: BlockChain, own: range) -> None:
        if not 0 <= own.start < own.stop <= len(chain.names) or own.step != 1:
            raise PlanError(f"there are no blocks {own} among the {len(chain.names)} of the model")
        self.model = model
        self.chain = chain
        self.own = own
        self.agree: Callable[[bool], bool] = bool  # ranks that split the tokens set it: all or none
        self._call: _Call | None = None
        self._proved: set[Header] = set()
        for at, name in enumerate(chain.names):
            if at in own:
                self._watch(model.get_submodule(name), at)
            else:
                self._replace(name, at)

    @property
    def is_first(self) -> bool:
        """Whether the segment begins with the first block: `run` takes no `incoming`."""
        return self.own.start == 0

    @property
    def is_last(self) -> bool:
        """Whether the segment ends with the last block: `run` returns the model's output."""
        return self.own.stop == len(self.chain.names)

    def run(self, *args: Any, incoming: Handoff | None = None, **kwargs: Any) -> Handoff | Any:
        """The segment's forward, with the arguments of the whole model's forward.

        `incoming` is what the rank before handed over (None on the first rank and nowhere else).
        Returns a `Handoff` for the next rank, or on the last rank what the model returns. PlanError
        when the call skips or repeats blocks, or reads outputs of blocks that live elsewhere: the
        first call with a new header proves that it does not.
        """
        assert (incoming is None) == self.is_first, "every rank but the first takes up a handoff"
        outcome = self._run(args, kwargs, _Call(self.chain, incoming, NAN))
        if incoming is not None and incoming.header not in self._proved:
            self._prove(outcome, args, kwargs, incoming)
            self._proved.add(incoming.header)
        return outcome

    def stand_in(self, at: int) -> Value:
        """What the placeholder of block `at` returns in the call that is running."""
        call = self._call
        if call is None:
            raise PlanError("a model that is cut over pipeline ranks was called outside `run`")
        call.arrive(at)
        assert call.incoming is not None  # or it would not have been this block's turn
        if at == self.own.start - 1:
            return call.incoming.value()
        return blank(call.specs[at], _device_of(call.incoming, self.model), call.fill)

    def _run(self, args: Any, kwargs: Any, call: _Call) -> Handoff | Any:
        self._call = call
        try:
            output = self.model(*args, **kwargs)
        except _LeaveForwardError as left:
            call.specs[-1], tensors = flatten(left.value)
            return Handoff(Header(tuple(call.specs)), tensors)
        finally:
            self._call = None
        if call.next != len(self.chain.names):
            raise PlanError(
                f"the forward ended without calling block {self.chain.names[call.next]}, so this "
                "call cannot be split over pipeline ranks; use --pp 1"
            )
        return output

    def _prove(self, outcome: Any, args: Any, kwargs: Any, incoming: Handoff) -> None:
        """Blanks are NaN: a finite result has not read them. Any other is made again from zeros."""
        if self.agree(all(bool(leaf.isfinite().all()) for leaf in _floats(outcome))):
            return
        again = self._run(args, kwargs, _Call(self.chain, incoming, 0.0))
        pairs = zip(_floats(outcome), _floats(again), strict=True)
        same = all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs)
        if not self.agree(same):
            raise PlanError(
                f"{type(self.model).__name__} reads outputs of blocks before "
                f"{self.chain.names[self.own.start]} again later, so it cannot be cut there; "
                "use --pp 1"
            )

    def _watch(self, block: nn.Module, at: int) -> None:
        def enter(_block: nn.Module, _args: Any) -> None:
            if self._call is not None:
                self._call.arrive(at)

        def leave(_block: nn.Module, _args: Any, value: Value) -> None:
            if self._call is not None:
                self._call.specs.append(spec_of(value))
                if at == self.own[-1] and not self.is_last:
                    raise _LeaveForwardError(value)

        block.register_forward_pre_hook(enter)
        block.register_forward_hook(leave)

    def _replace(self, name: str, at: int) -> None:
        block = self.model.get_submodule(name)
        inside = [part for part in self.chain.borrowed if part.startswith(name + ".")]
        borrowed = [self.model.get_submodule(part) for part in inside]
        _drop_weights(block, {id(module) for part in borrowed for module in part.modules()})
        parent, _, leaf = name.rpartition(".")
        placeholder = _placeholder_for(type(block))(self.stand_in, at, block, borrowed)
        setattr(self.model.get_submodule(parent), leaf, placeholder)


class Placeholder(nn.Module):
    """Stands where a block of another rank belongs. Attributes that it lacks are the block's own.

    It has no parameters: the block hangs on it as a plain attribute, its weights on the meta device
    but for `borrowed`, modules in it that the model calls from outside.
    """

    def __init__(
        self,
        stand_in: Callable[[int], Value],
        at: int,
        block: nn.Module,
        borrowed: list[nn.Module],
    ) -> None:
        super().__init__()
        self._stand_in = stand_in
        self._at = at
        self._block = (block,)  # in a tuple, so that it is no child
        self._borrowed = tuple(borrowed)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_"):
                raise
            return getattr(self.__dict__["_block"][0], name)

    def _apply(self, fn: Any, recurse: bool = True) -> Placeholder:
        for module in self._borrowed:
            cast(Any, module)._apply(fn, recurse)  # moves and casts go with the model
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Value:
        """Whatever the arguments: what the previous rank sent, or blanks."""
        return self._stand_in(self._at)


def _placeholder_for(block_class: type[nn.Module]) -> type[Placeholder]:
    """A placeholder class whose forward shows the signature of the block's.

    Hooks (diffusers' context parallel ones) look arguments up by it.
    """

    def forward(self: Placeholder, *args: Any, **kwargs: Any) -> Value:
        return Placeholder.forward(self, *args, **kwargs)

    cast(Any, forward).__signature__ = inspect.signature(block_class.forward)
    return type("Placeholder", (Placeholder,), {"forward": forward})


class _LeaveForwardError(Exception):
    """Carries the last owned block's return value out of the forward."""

    def __init__(self, value: Value) -> None:
        super().__init__()
        self.value = value


class _Call:
    """One run of the forward: which block comes next, and the structures seen so far."""

    def __init__(self, chain: BlockChain, incoming: Handoff | None, fill: float) -> None:
        self.chain = chain
        self.incoming = incoming
        self.fill = fill  # of blanks
        self.specs: list[Spec] = list(incoming.header.blocks) if incoming is not None else []
        self.next = 0

    def arrive(self, at: int) -> None:
        """Block `at` is called; it must be its turn in the order that the split was made for."""
        if at != self.next:
            names = self.chain.names
            due = names[self.next] if self.next < len(names) else "the end of the forward"
            raise PlanError(
                f"block {names[at]} was called when {due} was due, so this call cannot be split "
                "over pipeline ranks; leave out what skips or repeats blocks, or use --pp 1"
            )
        self.next += 1


def _drop_weights(block: nn.Module, kept: set[int]) -> None:
    """Move the parameters of `block` to the meta device, but for modules whose id is in `kept`."""
    for module in block.modules():
        if id(module) in kept:
            continue
        for name, parameter in module._parameters.items():
            if parameter is not None and not parameter.is_meta:
                module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)


def _device_of(incoming: Handoff, model: nn.Module) -> torch.device:
    for tensor in incoming.tensors:
        return tensor.device
    return next(model.parameters()).device


def _floats(value: Any) -> Iterator[torch.Tensor]:
    """The floating-point tensors in a handoff or a model's output."""
    if isinstance(value, Handoff):
        value = value.tensors
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict | tuple | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _floats(item)
