"""Names in the abstract run of a forward: which variable holds a tensor, a block, a list of blocks.

The lower half of `dataflow`: values are sets of labels, see there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeGuard

Labels = frozenset[tuple[str, int]]
NONE: Labels = frozenset()

_WRAPPERS = frozenset({"list", "tuple", "iter", "reversed"})


@dataclass(slots=True)
class Scope:
    """Local names of one method: labels of tensors, blocks and lists of blocks by variable."""

    labels: dict[str, Labels] = field(default_factory=dict)
    blocks: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    ended: bool = False  # return, raise, continue or break was reached on this path
    result: Labels = NONE

    def copy(self) -> Scope:
        """An independent copy for one branch."""
        return Scope(
            dict(self.labels), dict(self.blocks), dict(self.aliases), self.ended, self.result
        )


class Names:
    """Binds and resolves names while a method is walked; `visit` is the walk's."""

    def __init__(self, lists: frozenset[str]) -> None:
        self.lists = lists
        self.scope = Scope()
        self.borrowed: set[tuple[str, int | None, str]] = set()

    def visit(self, node: ast.AST) -> Labels:
        """Walk one node; the labels of its value (none for a statement)."""
        raise NotImplementedError

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        """`target = value`, tuple by tuple where both sides spell one out."""
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            found = [self.visit(element) for element in value.elts]
            if len(found) == len(target.elts):
                for element, labels in zip(target.elts, found, strict=True):
                    self.bind(element, labels)
                return
        alias, block = self.list_of(value), self.block_of(value)
        labels = self.visit(value)
        self.bind(target, labels)
        if isinstance(target, ast.Name):
            if alias is not None:
                self.scope.aliases[target.id] = alias
            if block is not None:
                self.scope.blocks[target.id] = block

    def bind(self, target: ast.expr, labels: Labels, whole: bool = True) -> None:
        """Give `target` the labels; a subscript or a part (`whole` False) only adds them."""
        if isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self.bind(element, labels)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, labels)
        elif isinstance(target, ast.Subscript):
            self.bind(target.value, labels | self.visit(target.value), whole=False)
        else:
            path = dotted(target)
            if path is not None:
                self.scope.labels[path] = labels
                if whole:
                    self.scope.blocks.pop(path, None)
                    self.scope.aliases.pop(path, None)

    def bind_loop(self, target: ast.expr, source: ast.expr) -> list[str]:
        """Bind the loop variable of `for target in source`; the block lists that it runs over."""
        name = getattr(getattr(source, "func", None), "id", "")
        inner = source.args if isinstance(source, ast.Call) else []
        parts = target.elts if isinstance(target, ast.Tuple) else []
        if name == "enumerate" and len(parts) == 2:
            return self.bind_loop(parts[1], inner[0])
        if name == "zip" and len(parts) == len(inner):
            return [
                n for part, arg in zip(parts, inner, strict=True) for n in self.bind_loop(part, arg)
            ]
        found = self.list_of(source)
        if found is None:
            self.bind(target, self.visit(source))
            counted = inner[0] if name == "range" and len(inner) == 1 else None
            over = self.list_of(counted.args[0]) if _is_len(counted) else None
            return [over] if over is not None else []
        self.bind(target, NONE)
        if isinstance(target, ast.Name):
            self.scope.blocks[target.id] = found
        return [found]

    def list_of(self, node: ast.expr) -> str | None:
        """The block list that `node` is (all or a slice of it), or None."""
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _WRAPPERS and node.args:
            return self.list_of(node.args[0])
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            return self.list_of(node.value)
        path = dotted(node)
        if path is None:
            return None
        if path in self.scope.aliases:
            return self.scope.aliases[path]
        name = path.removeprefix("self.")
        return name if name != path and name in self.lists else None

    def block_of(self, node: ast.expr) -> str | None:
        """The list of the block that `node` is, or None."""
        if isinstance(node, ast.Attribute) and node.attr in ("__call__", "forward"):
            return self.block_of(node.value)
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            return self.list_of(node.value)
        return self.scope.blocks.get(node.id) if isinstance(node, ast.Name) else None

    def passed_block(self, node: ast.expr) -> str | None:
        """The list of the block that argument `node` hands on, bare or wrapped in a call."""
        if isinstance(node, ast.Call) and self.block_of(node.func) is None:
            return next((b for b in map(self.passed_block, node.args) if b is not None), None)
        return self.block_of(node)

    def note_borrowed(self, node: ast.Attribute) -> bool:
        """Record `block.some.attribute` as borrowed from its list; whether it is one."""
        names, base = [node.attr], node.value
        while isinstance(base, ast.Attribute) and self.block_of(base) is None:
            names, base = [base.attr, *names], base.value
        found = self.block_of(base)
        if found is None or names == ["__call__"]:
            return False
        index = getattr(getattr(base, "slice", None), "value", None)
        at = index if isinstance(index, int) else None
        self.borrowed.add((found, at, ".".join(names)))
        return True


def dotted(node: ast.AST) -> str | None:
    """`a.b.c` (also `a.b["c"]`) as text, or None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return None if base is None else f"{base}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        key = node.slice.value
        base = dotted(node.value) if isinstance(key, str) else None
        return None if base is None else f"{base}.{key!s}"
    return None


def _is_len(node: ast.expr | None) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len"


def union(parts: Iterable[Labels]) -> Labels:
    """All labels of `parts`."""
    return NONE.union(*parts)


def renamed(labels: Labels, old_clock: int, new_clock: int) -> Labels:
    """`labels` with those that are fresh at `old_clock` made fresh at `new_clock`."""
    return frozenset((n, new_clock if tick == old_clock else tick) for n, tick in labels)


def joined_scope(ends: list[tuple[Scope, int]], clock: int) -> Scope:
    """The scope in which any of the path ends (scope, its clock) may hold."""
    joined = Scope(ended=all(scope.ended for scope, _ in ends))
    for scope, old in ends:
        for name, labels in scope.labels.items():
            joined.labels[name] = joined.labels.get(name, NONE) | renamed(labels, old, clock)
        joined.blocks.update(scope.blocks)
        joined.aliases.update(scope.aliases)
    return joined
