"""Share out the tensors of a transformer over the ranks of the tp axis, by its `TensorPlan`.

Every rank computes with plain local tensors: a layer cut by outputs is an ordinary smaller layer, a
layer cut by inputs sums its results over the ranks. DTensor would do the same sums, but its
dispatch is not cached under inference mode, in which the executor runs: 4 to 5 ms for a pair of
small linear layers, against 1 to 2 ms here (gloo, two ranks).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional as F

from diffbatch.errors import PlanError
from diffbatch.parallel.cut import CutModel
from diffbatch.plan.tensor import Slice, Style, TensorPlan, TensorShare, slice_of, tensor_plan_of

_TENSORS = ("weight", "bias")


def tensor_slices(model: nn.Module, share: TensorShare) -> Mapping[str, Slice]:
    """By tensor name, the slice that this rank owns; what is not named, it owns whole.

    `model` has its full shapes, on the meta device or not. PlanError when the class has no plan or
    a size does not divide. Needs no process group.
    """
    if share.tp == 1:
        return {}
    found: dict[str, Slice] = {}
    plan = _plan(model)
    for path, module, style in _planned(model, plan):
        for own in _TENSORS:
            tensor, dim = getattr(module, own, None), plan.dim_of(f"{path}.{own}")
            if tensor is not None and dim is not None:
                sizes = _block_sizes(path, module, style, tensor.shape[dim], share.tp)
                found[f"{path}.{own}"] = slice_of(dim, sizes, share)
    return found


def apply_tensor_parallel(model: nn.Module | CutModel, group: Any) -> None:
    """Make `model` compute with the slices of this rank only, in place.

    `group` holds the ranks of one tp group in tp order; None, for one rank, changes nothing. Works
    before and after a cut. A tensor that `load_weights` has already cut stays as it is, a whole one
    is cut here. Afterwards every rank of the group must run the same forwards in the same order,
    and every rank gets the whole output: equal to that of one rank but for the rounding of sums.
    """
    if group is None:
        return
    inner = model.model if isinstance(model, CutModel) else model
    plan = _plan(inner)
    share = TensorShare(tp=distributed.get_world_size(group), rank=distributed.get_rank(group))
    for path, module, style in list(_planned(inner, plan)):
        if module.weight is not None and module.weight.is_meta:
            continue  # in a block of another pipeline rank
        full = _full_size(module, style)
        for own in _TENSORS:
            dim = plan.dim_of(f"{path}.{own}")
            if getattr(module, own, None) is not None and dim is not None:
                sizes = _block_sizes(path, module, style, full, share.tp)
                _keep(module, own, slice_of(dim, sizes, share), full)
        if style.kind != "colwise":
            parent, _, leaf = path.rpartition(".")
            setattr(inner.get_submodule(parent), leaf, _replacement(module, style, group))
    for path, module in inner.named_modules():
        if plan.counts_heads(path):
            module.heads = _divided(path, "heads", int(module.heads), share.tp)


class RowwiseLinear(nn.Module):
    """A linear layer of which this rank has the columns of some inputs.

    Takes (..., inputs / tp local) and gives (..., outputs), the same on all ranks of the group,
    which all must call it. The bias is added once, after the sum.
    """

    def __init__(self, linear: nn.Linear, group: Any) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self._group = group

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' products, in the dtype of the inputs, plus the bias."""
        outputs = F.linear(inputs, self.weight)
        distributed.all_reduce(outputs, group=self._group)
        return outputs if self.bias is None else outputs + self.bias


class SharedRMSNorm(nn.Module):
    """An RMS norm over a width that is cut over ranks: (..., width / tp local), same out.

    The squares are summed in fp32 over the group, whose ranks all must call it.
    """

    def __init__(self, norm: nn.RMSNorm, group: Any) -> None:
        super().__init__()
        (self.width,) = norm.normalized_shape
        self.eps = norm.eps
        self.weight = norm.weight
        self._group = group

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """As torch's RMS norm: in fp32 inside, in the dtype of the inputs outside."""
        wide = inputs.float()
        squares = wide.square().sum(-1, keepdim=True)
        distributed.all_reduce(squares, group=self._group)
        eps = torch.finfo(inputs.dtype).eps if self.eps is None else self.eps
        wide = wide * torch.rsqrt(squares / self.width + eps)
        return (wide if self.weight is None else wide * self.weight).to(inputs.dtype)


def _plan(model: nn.Module) -> TensorPlan:
    name = type(model).__name__
    plan = tensor_plan_of(name)
    if plan is None:
        raise PlanError(f"{name} has no plan for tensor parallelism; use --tp 1")
    return plan


def _planned(model: nn.Module, plan: TensorPlan) -> Iterator[tuple[str, Any, Style]]:
    """The modules that are cut. Typed Any: their attributes are those of the kind."""
    for path, module in model.named_modules():
        style = plan.style_of(path)
        if style is not None and not isinstance(module, nn.Identity):
            expected = nn.RMSNorm if style.kind == "norm" else nn.Linear
            if not isinstance(module, expected):
                raise PlanError(
                    f"{path} is a {type(module).__name__}, the plan for tensor parallelism expects "
                    f"a {expected.__name__}; use --tp 1"
                )
            yield path, module, style


def _full_size(module: Any, style: Style) -> int:
    if style.kind == "norm":
        (size,) = module.normalized_shape
        return int(size)
    return int(module.out_features if style.kind == "colwise" else module.in_features)


def _block_sizes(path: str, module: Any, style: Style, full: int, tp: int) -> tuple[int, ...]:
    """The sizes of the layers that lie side by side in one; each is divided by tp."""
    blocks = style.blocks
    if style.packed and not blocks:
        name = "_tp_packed_col_blocks" if style.kind == "colwise" else "_tp_packed_row_blocks"
        blocks = tuple(getattr(module, name))
    blocks = blocks or (1,)
    unit = _divided(path, "size", full, sum(blocks))
    for block in blocks:
        _divided(path, "size", block * unit, tp)
    return tuple(block * unit for block in blocks)


def _divided(path: str, what: str, count: int, degree: int) -> int:
    if count % degree:
        raise PlanError(f"{path}: its {what} {count} is not divisible by {degree}; lower --tp")
    return count // degree


def _keep(module: Any, own: str, part: Slice, full: int) -> None:
    """Leave of a whole tensor this rank's slice, in memory of its own."""
    tensor = getattr(module, own).detach()
    if tensor.shape[part.dim] == part.length:
        return
    assert tensor.shape[part.dim] == full, "neither whole nor this rank's slice"
    pieces = [tensor.narrow(part.dim, run.start, len(run)) for run in part.ranges]
    setattr(module, own, nn.Parameter(torch.cat(pieces, part.dim), requires_grad=False))


def _replacement(module: Any, style: Style, group: Any) -> nn.Module:
    if style.kind == "norm":
        return SharedRMSNorm(module, group)
    return RowwiseLinear(module, group)
