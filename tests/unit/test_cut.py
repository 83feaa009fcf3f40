"""What a cut model refuses, and what it leaves alone. Exactness is in tests/parity."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from diffbatch.errors import PlanError
from diffbatch.parallel.chain import find_chain
from diffbatch.parallel.cut import CutModel
from diffbatch.parallel.structure import Handoff
from diffbatch.plan.chain import BlockChain

CHAIN = BlockChain(tuple(f"blocks.{at}" for at in range(4)))


class Block(nn.Module):
    """x -> x W, with an attribute that outer code reads."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.kind = "plain"

    def forward(self, x_BLD: torch.Tensor) -> torch.Tensor:
        return self.linear(x_BLD)


class Model(nn.Module):
    """A chain of four; `skip` leaves block 1 out, `keep` reads block 0's output at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm = nn.LayerNorm(4)

    def forward(
        self, x_BLD: torch.Tensor, skip: bool = False, keep: float | None = None
    ) -> torch.Tensor:
        kept = None
        for at, block in enumerate(self.blocks):
            assert block.kind == "plain"
            if not (skip and at == 1):
                x_BLD = block(x_BLD)
            kept = x_BLD if at == 0 else kept
        return self.norm(x_BLD if keep is None else x_BLD + keep * kept)


@pytest.fixture(name="x_BLD")
def hidden_states() -> torch.Tensor:
    return torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))


def halves() -> tuple[CutModel, CutModel]:
    torch.manual_seed(0)
    first = Model()
    second = Model()
    second.load_state_dict(first.state_dict())
    return CutModel(first, CHAIN, range(2)), CutModel(second, CHAIN, range(2, 4))


@torch.no_grad()
def test_two_segments_make_the_whole(x_BLD: torch.Tensor) -> None:
    torch.manual_seed(0)
    whole = Model()(x_BLD)
    first, second = halves()
    assert (first.is_first, first.is_last, second.is_first, second.is_last) == (1, 0, 0, 1)
    handoff = first.run(x_BLD)
    assert isinstance(handoff, Handoff)
    assert torch.equal(second.run(x_BLD, incoming=handoff), whole)


@torch.no_grad()
def test_a_call_that_skips_a_block_is_refused(x_BLD: torch.Tensor) -> None:
    first, _ = halves()
    with pytest.raises(PlanError, match=r"blocks\.2 was called when blocks\.1 was due.*--pp 1"):
        CutModel(Model(), CHAIN, range(3)).run(x_BLD, skip=True)
    assert isinstance(first.run(x_BLD), Handoff)  # the next call is not disturbed


@torch.no_grad()
def test_a_call_that_never_reaches_the_last_block_is_refused(x_BLD: torch.Tensor) -> None:
    model = Model()
    cut = CutModel(model, CHAIN, range(4))
    model.blocks = model.blocks[:3]
    with pytest.raises(PlanError, match=r"ended without calling block blocks\.3"):
        cut.run(x_BLD)


@torch.no_grad()
def test_reading_an_output_of_another_rank_is_noticed(x_BLD: torch.Tensor) -> None:
    first, second = halves()
    handoff = first.run(x_BLD, keep=0.5)
    with pytest.raises(PlanError, match=r"Model reads outputs of blocks before blocks\.2 again"):
        second.run(x_BLD, keep=0.5, incoming=handoff)


@torch.no_grad()
def test_the_models_own_nan_is_not_mistaken_for_it(x_BLD: torch.Tensor) -> None:
    first, second = halves()
    x_BLD[0] = float("nan")
    output = second.run(x_BLD, incoming=first.run(x_BLD))
    assert output[0].isnan().all()
    assert output[1].isfinite().all()


@torch.no_grad()
def test_an_error_in_the_forward_leaves_the_segment_usable(x_BLD: torch.Tensor) -> None:
    first, _ = halves()
    with pytest.raises(RuntimeError):
        first.run(x_BLD[..., :3])
    assert isinstance(first.run(x_BLD), Handoff)


@torch.no_grad()
def test_a_cut_model_is_not_called_as_a_whole(x_BLD: torch.Tensor) -> None:
    first, second = halves()
    with pytest.raises(PlanError, match="called outside `run`"):
        second.model(x_BLD)
    with pytest.raises(PlanError, match="called outside `run`"):
        first.model(x_BLD)


def test_weights_of_other_ranks_are_dropped() -> None:
    first, _ = halves()
    names = {name for name, _ in first.model.named_parameters()}
    assert {name.split(".")[1] for name in names if name.startswith("blocks")} == {"0", "1"}
    assert first.model.get_submodule("blocks.3").kind == "plain"
    assert all(p.is_meta for p in first.model.get_submodule("blocks.3").linear.parameters())


def test_blocks_outside_of_the_chain_are_refused() -> None:
    for own in (range(0), range(3, 5), range(0, 4, 2)):
        with pytest.raises(PlanError, match="there are no blocks"):
            CutModel(Model(), CHAIN, own)


def test_this_file_reads_its_own_model_as_uncuttable() -> None:
    with pytest.raises(PlanError, match=r"Model cannot be cut .*kept and read again by the output"):
        find_chain(Model())


def test_a_placeholder_shows_the_signature_of_its_block() -> None:
    first, _ = halves()
    placeholder = type(first.model.get_submodule("blocks.3"))
    assert list(inspect.signature(placeholder.forward).parameters) == ["self", "x_BLD"]
