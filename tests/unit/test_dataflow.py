"""Where a forward can be cut, read from its source."""

from __future__ import annotations

import ast
from textwrap import dedent, indent

import pytest

from diffbatch.errors import PlanError
from diffbatch.plan.chain import BlockChain, chain_of, list_sizes, methods_in
from diffbatch.plan.dataflow import ListFlow, find_lists

LISTS = frozenset({"blocks", "singles", "refiners", "heads"})


def flow(forward: str, more: str = "") -> ListFlow:
    """What is found in a class with this body of `forward(self, x, e, t)`."""
    source = "class Model:\n    def forward(self, x, e, t, extra=None):\n"
    source += indent(dedent(forward), " " * 8) + indent(dedent(more), " " * 4)
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.ClassDef)
    return find_lists(methods_in(node), LISTS)


CUTTABLE = {
    "one list": (
        """
        x = self.proj(x)
        for block in self.blocks:
            x = block(x, e, t)
        return self.norm(x, t)
        """,
        (("blocks",),),
    ),
    "two lists, concatenated in between": (
        """
        for i, block in enumerate(self.blocks):
            e, x = block(x, e)
            x = x + extra[i]
        length = e.shape[1]
        x = torch.cat([e, x], dim=1)
        for block in self.singles:
            x = block(x)
        return self.out(x[:, length:])
        """,
        (("blocks",), ("singles",)),
    ),
    "lists in turn": (
        """
        for i, (block, single) in enumerate(zip(self.blocks, self.singles)):
            x = block(x)
            x = single(x)
        return x
        """,
        (("blocks", "singles"),),
    ),
    "a checkpointing branch": (
        """
        for block in self.blocks:
            if torch.is_grad_enabled() and self.gradient_checkpointing:
                x, e = self._gradient_checkpointing_func(block, x, e, t)
            else:
                x, e = block(x, e, t, scale=extra[0] if extra is not None else None)
        return x
        """,
        (("blocks",),),
    ),
    "one expression with both branches": (
        """
        for block in self.blocks:
            x = self.run(block.__call__, x) if self.training else block(x)
        return x
        """,
        (("blocks",),),
    ),
    "slices of an alias": (
        """
        blocks = self.blocks
        for block in blocks[:2]:
            x = block(x)
        for block in blocks[2:]:
            x = block(x)
        return x
        """,
        (("blocks",),),
    ),
    "by index": (
        """
        for i in range(len(self.blocks)):
            x = self.blocks[i](x)
        return x
        """,
        (("blocks",),),
    ),
    "a list that may be empty": (
        """
        for block in self.blocks:
            x = block(x)
        if len(self.singles) > 0:
            for single in self.singles:
                x = single(x)
        return x
        """,
        (("blocks",), ("singles",)),
    ),
    "a helper that calls other modules per block": (
        """
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i % 2 == 0:
                x = x + self.heads[i](x, e)
        return x
        """,
        (("blocks",),),
    ),
    "early returns that end in the same list": (
        """
        if extra is None:
            return self.short(x)
        for block in self.blocks:
            x = block(x, extra)
        return x
        """,
        (("blocks",),),
    ),
}
SHORT = """
def short(self, y):
    for block in self.blocks:
        y = block(y)
    return y
"""


@pytest.mark.parametrize("name", CUTTABLE)
def test_lists_that_are_cut(name: str) -> None:
    body, groups = CUTTABLE[name]
    found = flow(body, SHORT)
    assert found.groups == groups
    assert found.whole == {}


REST = """
for block in self.blocks:
    x = block(x, e)
return x
"""
SIDE = {
    "its result is read by every block": "for r in self.refiners:\n    e = r(e)\n",
    "its results are collected": (
        "hints = []\nfor r in self.refiners:\n    e = r(e)\n    hints.append(e)\n"
    ),
    "only under a condition": (
        "if extra is not None:\n    for r in self.refiners:\n        x = r(x)\n"
    ),
}


@pytest.mark.parametrize("name", SIDE)
def test_side_lists_stay_whole(name: str) -> None:
    found = flow(SIDE[name] + REST)
    assert found.groups == (("blocks",),)
    assert found.whole.keys() == {"refiners"}


MIX = """
def mix(self, y):
    assert self.blocks
    y, self.older, self.last = y + self.older, self.last, y
    return y
"""
UNCUTTABLE = {
    "skip connections": """
        kept = []
        for block in self.blocks:
            x = block(x, kept.pop() if kept else None)
            kept.append(x)
        return x
        """,
    "a residual around the block": """
        for block in self.blocks:
            x = x + block(x)
        return x
        """,
    "all outputs are returned": """
        outputs = ()
        for block in self.blocks:
            x = block(x)
            outputs = outputs + (x,)
        return outputs
        """,
    "kept on the model by a helper": """
        for block in self.blocks:
            y = block(x)
            x = self.mix(y)
        return x
        """,
    "kept on the model": """
        for block in self.blocks:
            x = block(x, self.older)
            self.older, self.last = self.last, x
        return x
        """,
}


@pytest.mark.parametrize("name", UNCUTTABLE)
def test_lists_that_cannot_be_cut(name: str) -> None:
    found = flow(UNCUTTABLE[name], MIX)
    assert found.groups == ()
    assert "a block's output is kept and read again" in found.whole["blocks"]


def test_attributes_read_off_blocks_are_borrowed() -> None:
    found = flow(
        """
        kinds = [block.attn.processor for block in self.blocks]
        sizes = [len(block.layers) for block in self.blocks]
        for block in self.blocks:
            x = block(x)
        return self.out(x, self.blocks[0].norm.emb(t))
        """
    )
    assert found.borrowed == (("blocks", 0, "norm.emb"), ("blocks", None, "attn.processor"))
    keys = [f"blocks.{at}.{part}.weight" for at in range(2) for part in ("attn", "norm.emb.linear")]
    source = "class M:\n  def forward(self, x):\n    for b in self.blocks:\n      x = b(x)\n"
    source += "    return x + self.blocks[0].norm.emb(x)\n"
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.ClassDef)
    chain = chain_of("M", methods_in(node), keys)
    assert chain == BlockChain(("blocks.0", "blocks.1"), ("blocks.0.norm.emb",))
    last = range(1, 2)
    assert chain.owns(last, "blocks.0.norm.emb.linear.weight")
    assert not chain.owns(last, "blocks.0.attn.weight")
    assert chain.owns(last, "blocks.1.attn.weight")
    assert chain.owns(last, "proj.weight")


def test_sizes_of_lists_come_from_parameter_names() -> None:
    keys = ["blocks.0.a.weight", "blocks.1.b.0.weight", "modes.image.0.w", "proj.weight", "odd.3.w"]
    assert list_sizes(keys) == {"blocks": 2, "modes.image": 1}


def test_a_class_without_blocks_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match=r"M cannot be cut .* no list of blocks; use --pp 1"):
        chain_of("M", {}, ["blocks.0.weight"])
