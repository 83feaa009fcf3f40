"""Split the tokens of a transformer over ranks: diffusers' context parallel hooks and attention.

`enable_parallelism` of diffusers wants an accelerator and one mesh for the whole world. Here the
same hooks and the same configuration work on the process groups of one replica, on any device.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from diffusers import ContextParallelConfig
from diffusers.hooks import HookRegistry, ModelHook
from diffusers.hooks.context_parallel import (
    _CONTEXT_PARALLEL_OUTPUT_HOOK_TEMPLATE,
    apply_context_parallel,
)
from diffusers.models import attention_dispatch
from diffusers.models._modeling_parallel import ParallelConfig, gather_size_by_comm
from diffusers.models.attention import AttentionModuleMixin
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry
from diffusers.models.attention_processor import Attention
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh

from diffbatch.errors import PlanError
from diffbatch.parallel.cut import CutModel


def apply_sequence_parallel(
    model: nn.Module | CutModel,
    *,
    ring: Any,
    ulysses: Any,
    both: Any,
    device: torch.device,
    uneven: bool = False,
) -> None:
    """Make `model` split its tokens over the ranks of `both`, in place.

    `ring` and `ulysses` are this rank's process groups on these axes, None for one rank; `both`
    holds the ranks of the two, ring slower (None: nothing changes). Give it the `CutModel` where
    there is one; tensors may be cut before or after.

    Afterwards every rank of `both` must run the same forwards in the same order, with the same
    whole arguments. Block outputs hold L/sp local tokens; the last segment returns the whole output
    on every rank. `uneven` lets lengths that do not divide split into parts that differ by one, for
    ulysses or ring alone; it costs a small gather of lengths in every attention.
    """
    if both is None:
        return
    # diffusers calls it; a user can do nothing about it.
    warnings.filterwarnings("ignore", r".*all_gather_tensor` is deprecated", FutureWarning)
    inner: Any = model.model if isinstance(model, CutModel) else model
    plan = getattr(inner, "_cp_plan", None)
    if plan is None:
        raise PlanError(
            f"{type(inner).__name__} has no plan for sequence parallelism (_cp_plan); use "
            "--ulysses 1 and --ring 1"
        )
    config = _configuration(ring, ulysses, both, device, uneven)
    for path, module in inner.named_modules():
        if isinstance(module, Attention | AttentionModuleMixin):
            _configure(path, module, config, device)
    inner._parallel_config = config
    apply_context_parallel(inner, config.context_parallel_config, plan)
    if uneven:
        _gather_uneven(inner, plan, both)
    if isinstance(model, CutModel):
        model.agree = partial(_agree, group=both, device=device)


def _agree(answer: bool, *, group: Any, device: torch.device) -> bool:
    """Whether the answer is yes on every rank of the group; all must call it."""
    found = torch.tensor(int(answer), device=device)
    distributed.all_reduce(found, distributed.ReduceOp.MIN, group=group)
    return bool(found)


def _configuration(
    ring: Any, ulysses: Any, both: Any, device: torch.device, uneven: bool
) -> ParallelConfig:
    """What `ParallelConfig.setup` makes from a mesh, from process groups that exist."""
    context = ContextParallelConfig(
        ring_degree=_size(ring),
        ulysses_degree=_size(ulysses),
        ring_anything=uneven and ring is not None,
        ulysses_anything=uneven and ulysses is not None,
    )
    context._rank, context._world_size = distributed.get_rank(both), _size(both)
    context._device = device
    context._mesh = context._flattened_mesh = DeviceMesh.from_group(both, device.type)
    if ring is not None:
        context._ring_mesh = DeviceMesh.from_group(ring, device.type)
        context._ring_local_rank = distributed.get_rank(ring)
    if ulysses is not None:
        context._ulysses_mesh = DeviceMesh.from_group(ulysses, device.type)
        context._ulysses_local_rank = distributed.get_rank(ulysses)
    config = ParallelConfig(context_parallel_config=context)
    config._rank, config._world_size = context._rank, context._world_size
    config._device, config._mesh = device, context._mesh
    return config


def _size(group: Any) -> int:
    return 1 if group is None else int(distributed.get_world_size(group))


def _configure(path: str, module: Any, config: ParallelConfig, device: torch.device) -> None:
    """Tell one attention to talk to the other ranks, through a backend that can."""
    processor = module.processor
    if not hasattr(processor, "_parallel_config"):
        raise PlanError(
            f"{path} computes attention with {type(processor).__name__}, which knows no sequence "
            "parallelism; use --ulysses 1 and --ring 1"
        )
    backend = AttentionBackendName(
        processor._attention_backend or _AttentionBackendRegistry.get_active_backend()[0]
    )
    if not _AttentionBackendRegistry._is_context_parallel_available(backend):
        raise PlanError(
            f"the attention backend {backend.value} knows no sequence parallelism; unset "
            "DIFFUSERS_ATTN_BACKEND, or use --ulysses 1 and --ring 1"
        )
    ring = config.context_parallel_config.ring_degree > 1
    if ring and backend is AttentionBackendName.NATIVE:  # gives no log-sum-exp
        on_cpu = device.type == "cpu"
        processor._attention_backend = (
            _cpu_backend() if on_cpu else AttentionBackendName._NATIVE_FLASH
        )
    processor._parallel_config = config


def _gather_uneven(model: nn.Module, plan: Mapping[str, Any], group: Any) -> None:
    """Replace the hooks that gather parts of unlike length: gloo takes only parts of one length."""
    for path, outputs in plan.items():
        if isinstance(outputs, dict):  # a split
            continue
        entries = outputs if isinstance(outputs, list | tuple) else [outputs]
        dims = [None if entry is None else entry.gather_dim for entry in entries]
        registry = HookRegistry.check_if_exists_or_initialize(model.get_submodule(path))
        name = _CONTEXT_PARALLEL_OUTPUT_HOOK_TEMPLATE.format(path)
        registry.remove_hook(name, recurse=False)
        registry.register_hook(_UnevenGatherHook(dims, group), name)


class _UnevenGatherHook(ModelHook):  # type: ignore[misc]  # diffusers is not typed
    """Puts the parts of all ranks together in each output; padded on the way to one length."""

    def __init__(self, dims: Sequence[int | None], group: Any) -> None:
        super().__init__()
        self._dims, self._group = dims, group

    def post_forward(self, _module: nn.Module, output: Any) -> Any:
        """The whole output, on every rank of the group; all must call it."""
        outputs = [output] if isinstance(output, torch.Tensor) else list(output)
        for at, dim in enumerate(self._dims):
            if dim is not None:
                outputs[at] = self._whole(outputs[at], dim)
        return outputs[0] if isinstance(output, torch.Tensor) else tuple(outputs)

    def _whole(self, part: torch.Tensor, dim: int) -> torch.Tensor:
        lengths = gather_size_by_comm(part.shape[dim], self._group)
        padded = part.new_zeros([*part.shape[:dim], max(lengths), *part.shape[dim + 1 :]])
        padded.narrow(dim, 0, part.shape[dim]).copy_(part)
        parts = [torch.empty_like(padded) for _ in lengths]
        distributed.all_gather(parts, padded, group=self._group)
        pairs = zip(parts, lengths, strict=True)
        return torch.cat([whole.narrow(dim, 0, length) for whole, length in pairs], dim)


@cache
def _cpu_backend() -> AttentionBackendName:
    """A backend of ours, as diffusers' native one but with the log-sum-exp that a ring needs.

    diffusers looks backends up by members of an enumeration, so this makes one more.
    """
    name = "diffbatch_cpu"
    member = str.__new__(AttentionBackendName, name)
    member._name_, member._value_ = name, name
    register = _AttentionBackendRegistry.register(member, supports_context_parallel=True)
    register(_cpu_attention)
    return member


def _cpu_attention(  # noqa: PLR0913  diffusers passes the options that are named here
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    _parallel_config: ParallelConfig | None = None,
) -> torch.Tensor:
    """Attention of (B, L, N, K) tensors, L/sp local where `_parallel_config` is set."""
    options: dict[str, Any] = {
        "dropout_p": dropout_p,
        "is_causal": is_causal,
        "enable_gqa": enable_gqa,
    }
    options |= {"attn_mask": attn_mask, "scale": scale}
    if _parallel_config is None:
        found = attention_dispatch._native_attention(query, key, value, **options)
    else:
        if attn_mask is not None:  # it would have to travel around the ring with the keys
            raise PlanError("ring cannot split attention that has a mask; use --ulysses instead")
        found = attention_dispatch._templated_context_parallel_attention(
            query,
            key,
            value,
            **options,
            forward_op=_cpu_forward,
            backward_op=None,
            _parallel_config=_parallel_config,
        )
    assert isinstance(found, torch.Tensor)
    return found


def _cpu_forward(
    _context: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *rest: Any,
    **_options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One turn of the ring: (B, L, N, K) output and (B, L, N) log-sum-exp, fp32.

    It is the kernel behind torch's own attention on the CPU.
    """
    _mask, _dropout, _is_causal, scale, *_ = rest
    heads_first = (tensor.transpose(1, 2) for tensor in (query, key, value))
    output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *heads_first, scale=scale
    )
    return output.transpose(1, 2), logsumexp.transpose(1, 2)
