"""How to cut the transformers that diffusers has no `_tp_plan` for: a table, nothing else.

Paths are as in diffusers' plans. Within an attention, queries, keys and values are cut by heads;
norms over one head and modulations stay whole; "norm" is an RMS norm over all heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

_Kind = Literal["colwise", "rowwise", "norm"]


def _attention(path: str, *, joined: bool = False, normed: bool = False) -> dict[str, _Kind]:
    """One attention. `joined` has projections of a second stream, `normed` norms over all heads."""
    styles: dict[str, _Kind] = {f"{path}.to_{name}": "colwise" for name in "qkv"}
    styles[f"{path}.to_out.0"] = "rowwise"
    styles |= {f"{path}.add_{name}_proj": "colwise" for name in ("qkv" if joined else "kv")}
    if joined:
        styles[f"{path}.to_add_out"] = "rowwise"
    if normed:
        styles |= {f"{path}.norm_{name}": "norm" for name in ("q", "k", "added_k")}
    return styles


def _feed_forward(path: str) -> dict[str, _Kind]:
    return {f"{path}.net.0.proj": "colwise", f"{path}.net.2": "rowwise"}


def _wan_blocks(path: str) -> dict[str, _Kind]:
    return {
        **_attention(f"{path}.attn1", normed=True),
        **_attention(f"{path}.attn2", normed=True),
        **_feed_forward(f"{path}.ffn"),
    }


STYLES: Mapping[str, Mapping[str, _Kind]] = {
    "WanTransformer3DModel": _wan_blocks("blocks.*"),
    "WanVACETransformer3DModel": {**_wan_blocks("blocks.*"), **_wan_blocks("vace_blocks.*")},
    "SD3Transformer2DModel": {
        **_attention("transformer_blocks.*.attn", joined=True),
        **_attention("transformer_blocks.*.attn2"),
        **_feed_forward("transformer_blocks.*.ff"),
        **_feed_forward("transformer_blocks.*.ff_context"),
    },
}

# Attention modules that split their width by an attribute `heads`: it must be that of one rank.
HEADS: Mapping[str, tuple[str, ...]] = {
    "WanTransformer3DModel": ("blocks.*.attn1", "blocks.*.attn2"),
    "WanVACETransformer3DModel": (
        "blocks.*.attn1",
        "blocks.*.attn2",
        "vace_blocks.*.attn1",
        "vace_blocks.*.attn2",
    ),
    "SD3Transformer2DModel": ("transformer_blocks.*.attn", "transformer_blocks.*.attn2"),
}
