"""The block chain of a transformer, from its class's source and the names of its parameters.

Pure: `plan` calls `chain_of` with the keys of a safetensors header, a worker with those of the
model, and both get the same chain. Nothing here knows a model's name.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from diffbatch.errors import PlanError
from diffbatch.plan.dataflow import ListFlow, Methods, find_lists

_BLOCK_KEY = re.compile(r"((?:[A-Za-z_]\w*\.){1,2})(\d+)\.")


@dataclass(frozen=True, slots=True)
class BlockChain:
    """The blocks of a model that pipeline ranks share out.

    `names` are qualified ("transformer_blocks.0", ...), in call order. `borrowed` are modules in
    blocks that code outside of the blocks calls: every rank needs their weights. All that is not
    in a block stays whole on every rank.
    """

    names: tuple[str, ...]
    borrowed: tuple[str, ...] = ()

    def owns(self, own: range, key: str) -> bool:
        """Whether a rank that owns blocks `own` needs the tensor `key`."""
        for at, name in enumerate(self.names):
            if key.startswith(name + "."):
                return at in own or any(key.startswith(part + ".") for part in self.borrowed)
        return True


def chain_of(class_name: str, methods: Methods, keys: Collection[str]) -> BlockChain:
    """The chain of class `class_name`. PlanError, with the reason, when nothing can be cut.

    `keys` are the names of all its parameters; they say how many blocks each list has.
    """
    sizes = list_sizes(keys)
    flow = find_lists(methods, frozenset(sizes))
    if not flow.groups:
        raise PlanError(
            f"{class_name} cannot be cut for pipeline parallelism: {_reason(flow)}; use --pp 1"
        )
    names = [name for group in flow.groups for name in _in_turn(group, sizes)]
    return BlockChain(tuple(names), tuple(_borrowed(flow, names, keys)))


def list_sizes(keys: Iterable[str]) -> dict[str, int]:
    """Number of modules in every list of a model, by its path, from the names of its parameters.

    Lists at the top level ("blocks") and in a dict of lists ("blocks.image") count.
    """
    indices: dict[str, set[int]] = {}
    for key in keys:
        match = _BLOCK_KEY.match(key)
        if match is not None:
            indices.setdefault(match[1][:-1], set()).add(int(match[2]))
    return {name: len(found) for name, found in indices.items() if max(found) + 1 == len(found)}


def methods_of_name(class_name: str) -> Methods:
    """The methods of a diffusers model class, its bases' included, read from the installed source.

    Does not import diffusers. PlanError when there is no such class.
    """
    found = _find_class(class_name)
    if found is None:
        raise PlanError(f"diffusers has no model class {class_name}")
    methods: dict[str, ast.FunctionDef] = {}
    for base in reversed(found.bases):
        name = base.id if isinstance(base, ast.Name) else ""
        if name and not name.endswith("Mixin") and _find_class(name) is not None:
            methods.update(methods_of_name(name))
    methods.update(methods_in(found))
    return methods


def attribute_of_name(class_name: str, attribute: str) -> ast.expr | None:
    """What a diffusers model class, or the nearest base, assigns to `attribute` in its body.

    Read from the installed source, as `methods_of_name` does. None where it is None, or nothing.
    """
    found = _find_class(class_name)
    if found is None:
        raise PlanError(f"diffusers has no model class {class_name}")
    for item in found.body:
        if isinstance(item, ast.Assign) and _assigns(item, attribute):
            return None if isinstance(item.value, ast.Constant) else item.value
    for base in found.bases:
        name = base.id if isinstance(base, ast.Name) else ""
        if name and not name.endswith("Mixin") and _find_class(name) is not None:
            return attribute_of_name(name, attribute)
    return None


def methods_in(node: ast.ClassDef) -> Methods:
    """The methods that a class body defines."""
    return {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}


def _assigns(item: ast.Assign, attribute: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == attribute for target in item.targets)


@cache
def _find_class(class_name: str) -> ast.ClassDef | None:
    spec = importlib.util.find_spec("diffusers")
    if spec is None or spec.origin is None:
        raise PlanError("diffusers is not installed")
    pattern = re.compile(rf"^class {re.escape(class_name)}\b", re.MULTILINE)
    for path in sorted(Path(spec.origin).parent.joinpath("models").rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if pattern.search(source) is None:
            continue
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and node.name == class_name:
                return node
    return None


def _in_turn(group: tuple[str, ...], sizes: dict[str, int]) -> list[str]:
    rounds = min(sizes[name] for name in group)
    return [f"{name}.{at}" for at in range(rounds) for name in group]


def _borrowed(flow: ListFlow, names: list[str], keys: Collection[str]) -> list[str]:
    found = []
    for list_name, index, attribute in flow.borrowed:
        for name in names:
            parent, _, at = name.rpartition(".")
            module = f"{name}.{attribute}"
            chosen = parent == list_name and index in (None, int(at))
            if chosen and any(key.startswith(module + ".") for key in keys):
                found.append(module)
    return found


def _reason(flow: ListFlow) -> str:
    if not flow.whole:
        return "its forward loops over no list of blocks"
    return "; ".join(f"{name}: {why}" for name, why in sorted(flow.whole.items()))
