"""Print docs/cut-classes.md: what pipeline ranks share out of each transformer class.

python -m tests.parity.cut_table > docs/cut-classes.md
"""

from __future__ import annotations

import diffusers
import torch

from diffbatch.plan.chain import list_sizes, methods_of_name
from diffbatch.plan.dataflow import find_lists
from tests.parity.tiny_transformers import REFUSED, TINY, UNTRIED

HEAD = """\
# Transformer classes and pipeline parallelism

With `--pp N` the blocks of a transformer are shared out over N ranks. diffbatch has no code for
single classes: it reads the class's `forward` and finds the lists of blocks that can be cut. Every
cut of every class in the first table gives output that is bit-identical to the uncut model
(`tests/parity/test_cut_classes.py`, diffusers {version}). This file is made by
`tests/parity/cut_table.py`.

## Cut

Lists in call order; "in turn" means one block of each, again and again. Lists that stay whole run
on every rank: later blocks read their result, or only some requests use them.

| class | lists that are cut | lists that stay whole |
|---|---|---|
"""


def code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def row(name: str) -> str:
    """The table row of one class of the first table."""
    with torch.device("meta"):
        model = getattr(diffusers, name)(**TINY[name].config)
    lists = frozenset(list_sizes([key for key, _ in model.named_parameters()]))
    flow = find_lists(methods_of_name(name), lists)
    groups = [code(list(g)) + (" in turn" if len(g) > 1 else "") for g in flow.groups]
    return f"| {name} | {', '.join(groups)} | {code(sorted(flow.whole))} |"


def table() -> str:
    """The whole file."""
    lines = [HEAD.format(version=diffusers.__version__).rstrip()]
    lines += [row(name) for name in sorted(TINY.keys() - REFUSED.keys())]
    lines += ["", "## Refused, before any weights are read", "", "| class | reason |", "|---|---|"]
    lines += [f"| {name} | {reason} |" for name, reason in sorted(REFUSED.items())]
    lines += ["", "## Not tried", "", "| class | why |", "|---|---|"]
    lines += [f"| {name} | {why} |" for name, why in sorted(UNTRIED.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
