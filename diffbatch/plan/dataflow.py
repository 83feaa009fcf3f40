"""Read a transformer's `forward` (its source, not its weights) and find where it can be cut.

`find_lists` walks the syntax tree once per guess and follows the outputs of blocks through the
local variables. A label (list, tick) on a variable says that it was computed from the output of the
tick-th block call; it is fresh until the next block call, stale after. A stale label that reaches a
later block or the result means that a value jumps over a block: nothing between the two may be cut.
Lists from which a value jumps to another list (refiners, side branches) are left whole; a list that
jumps over its own blocks (skip connections) cannot be cut. Pure: no torch, no import of the class.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from diffbatch.plan.scope import NONE, Labels, Names, Scope, dotted, joined_scope, renamed, union

Methods = Mapping[str, ast.FunctionDef]
NO_NAMES: frozenset[str] = frozenset()

_SHAPE_ATTRS = frozenset({"shape", "dtype", "device", "ndim"})
_LOOKS = frozenset({"len", "isinstance", "type", "hasattr"})  # at a module, without its weights
_SHAPE_CALLS = frozenset(
    {"size", "dim", "numel", "range", "new_zeros", "new_ones"}
    | {"zeros_like", "ones_like", "empty_like"}
)
_MUTATORS = frozenset(
    {"append", "extend", "insert", "add", "update", "add_", "copy_", "appendleft"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFlow:
    """What a forward does with its block lists.

    `groups` are the lists to cut, in call order; lists in one group are called in turn (zip).
    `borrowed` are attributes that code outside reads off blocks: (list, index or None for each
    block, dotted attribute). `whole` says why a list that the forward loops over is not cut.
    """

    groups: tuple[tuple[str, ...], ...]
    borrowed: tuple[tuple[str, int | None, str], ...]
    whole: Mapping[str, str]


def find_lists(methods: Methods, lists: frozenset[str], entry: str = "forward") -> ListFlow:
    """Which of `lists` (attribute paths: "blocks", "blocks.image") can be cut, in call order."""
    whole: dict[str, str] = {}
    cuttable = lists
    while True:
        walk = _Walk(methods, cuttable)
        walk.run(entry)
        looped = frozenset(name for group in walk.groups for name in group)
        faults = {name: why for name, why in walk.faults.items() if name in looped}
        if not faults and cuttable == looped:
            break
        if cuttable != looped:
            cuttable = looped
            continue
        name = next(iter(faults))
        whole[name] = faults[name]
        cuttable = cuttable - {name}
    return ListFlow(
        groups=tuple(tuple(group) for group in walk.groups),
        borrowed=tuple(sorted(walk.borrowed, key=str)),
        whole=whole,
    )


class _Walk(Names):
    """One abstract run of the forward, with `lists` taken as lists of blocks."""

    def __init__(self, methods: Methods, lists: frozenset[str]) -> None:
        super().__init__(lists)
        self.methods = methods
        self.clock = 0
        self.groups: list[list[str]] = []
        self.entered: set[str] = set()
        self.faults: dict[str, str] = {}  # by list, the first reason why it can't be cut
        self.depth = 0

    def run(self, entry: str) -> None:
        """Walk method `entry`; what it returns counts as read by the output."""
        method = self.methods.get(entry)
        if method is not None:
            self.body(method.body)

    # -- labels -------------------------------------------------------------------------------

    def read(self, labels: Labels, reader: str, line: int) -> None:
        """Note every list whose older block outputs `reader` uses."""
        for name, tick in sorted(labels):
            if tick != self.clock:
                where = "a later block of the list" if reader == name else reader
                self.faults.setdefault(
                    name, f"a block's output is kept and read again by {where} (line {line})"
                )

    def call_block(self, name: str, labels: Labels, line: int) -> Labels:
        """A block of list `name` is called with values that carry `labels`."""
        self.read(labels, name, line)
        self.clock += 1
        return frozenset({(name, self.clock)})

    def enter(self, names: list[str]) -> None:
        """A loop over lists `names` (several: zipped) begins."""
        self.entered.update(names)
        fresh = [name for name in names if not any(name in group for group in self.groups)]
        if fresh:
            self.groups.append(fresh)

    def fork(
        self, paths: tuple[Callable[[], Labels], ...], line: int, exempt: frozenset[str] = NO_NAMES
    ) -> Labels:
        """Walk alternative `paths` from one state and join them: any of them may have run."""
        start, clock, entered = self.scope, self.clock, self.entered
        ends: list[tuple[Scope, int, set[str], Labels]] = []
        for path in paths:
            self.scope, self.clock, self.entered = start.copy(), clock, set(entered)
            labels = path()
            ends.append((self.scope, self.clock, self.entered, labels))
        live = [end for end in ends if not end[0].ended] or ends
        self.entered = set().union(*(end[2] for end in live))
        always = self.entered.intersection(*(end[2] for end in live))
        for name in sorted(self.entered - always - exempt):
            self.faults.setdefault(name, f"it is called only under a condition (line {line})")
        self.clock = max(end[1] for end in ends) + any(end[1] != clock for end in ends)
        self.scope = joined_scope(
            [(scope, end_clock) for scope, end_clock, _, _ in live], self.clock
        )
        self.scope.result = union(renamed(end[0].result, end[1], self.clock) for end in ends)
        return union(renamed(end[3], end[1], self.clock) for end in live)

    # -- statements ---------------------------------------------------------------------------

    def body(self, statements: list[ast.stmt]) -> Labels:
        """Walk statements in order, until the path ends."""
        for statement in statements:
            if self.scope.ended:
                break
            self.visit(statement)
        return NONE

    def visit(self, node: ast.AST) -> Labels:
        """Walk one node; the labels of its value (none for a statement)."""
        handler = getattr(self, f"on_{type(node).__name__.lower()}", self.on_other)
        return cast(Labels, handler(node))

    def on_other(self, node: ast.AST) -> Labels:
        return union([self.visit(child) for child in ast.iter_child_nodes(node)])

    def on_assign(self, node: ast.Assign) -> Labels:
        for target in node.targets:
            self.assign(target, node.value)
        return NONE

    def on_annassign(self, node: ast.AnnAssign) -> Labels:
        if node.value is not None:
            self.assign(node.target, node.value)
        return NONE

    def on_augassign(self, node: ast.AugAssign) -> Labels:
        labels = self.visit(node.value)
        self.bind(node.target, labels | self.visit(node.target))
        return NONE

    def on_return(self, node: ast.Return) -> Labels:
        labels = self.visit(node.value) if node.value is not None else NONE
        if self.depth == 0:
            self.read(labels, "the output", node.lineno)
        self.scope.result |= labels
        self.scope.ended = True
        return NONE

    def on_raise(self, node: ast.AST) -> Labels:
        self.scope.ended = True
        return NONE

    on_continue = on_raise
    on_break = on_raise

    def on_if(self, node: ast.If) -> Labels:
        self.visit(node.test)
        named = frozenset(n.attr for n in ast.walk(node.test) if isinstance(n, ast.Attribute))
        return self.fork(
            (lambda: self.body(node.body), lambda: self.body(node.orelse)), node.lineno, named
        )

    def on_ifexp(self, node: ast.IfExp) -> Labels:
        self.visit(node.test)
        return self.fork(
            (lambda: self.visit(node.body), lambda: self.visit(node.orelse)), node.lineno
        )

    def on_for(self, node: ast.For) -> Labels:
        names = self.bind_loop(node.target, node.iter)
        if names:
            self.enter(names)
        for _ in range(3):  # a block's output can be stale, and read again, two rounds later
            self.body(node.body)
            self.scope.ended = False
        return self.body(node.orelse)

    def on_while(self, node: ast.While) -> Labels:
        self.visit(node.test)
        for _ in range(3):
            self.body(node.body)
            self.scope.ended = False
        return NONE

    def on_functiondef(self, node: ast.FunctionDef) -> Labels:
        return NONE  # local helpers are called with values, which carry the labels

    # -- expressions --------------------------------------------------------------------------

    def on_name(self, node: ast.Name) -> Labels:
        return self.scope.labels.get(node.id, NONE)

    def on_attribute(self, node: ast.Attribute) -> Labels:
        path = dotted(node)
        if path is not None and path in self.scope.labels:
            return self.scope.labels[path]
        if self.note_borrowed(node):
            return NONE
        labels = self.visit(node.value)
        return NONE if node.attr in _SHAPE_ATTRS else labels

    def on_listcomp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Labels:
        for generator in node.generators:
            self.bind_loop(generator.target, generator.iter)
            for condition in generator.ifs:
                self.visit(condition)
        return self.visit(node.elt)

    on_generatorexp = on_listcomp
    on_setcomp = on_listcomp

    def on_call(self, node: ast.Call) -> Labels:
        func = node.func
        args = [*node.args, *(keyword.value for keyword in node.keywords)]
        name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        if name in _LOOKS and isinstance(func, ast.Name):
            return NONE
        blocks = [self.block_of(func), *(self.passed_block(arg) for arg in args)]
        block = next((b for b in blocks if b is not None), None)
        if block is not None and name not in _SHAPE_CALLS:
            labels = union([self.visit(a) for a in args if self.passed_block(a) is None])
            return self.call_block(block, labels, node.lineno)
        if dotted(func) == f"self.{name}" and self.reaches_blocks(name):
            return self.call_method(self.methods[name], node)
        labels = union([self.visit(arg) for arg in args])
        if isinstance(func, ast.Attribute) and name in _MUTATORS:
            self.bind(func.value, labels | self.visit(func.value), whole=False)
        labels |= self.visit(func)
        return NONE if name in _SHAPE_CALLS else labels

    def reaches_blocks(self, name: str, seen: frozenset[str] = NO_NAMES) -> bool:
        """Whether method `name` or a method it calls mentions a block list."""
        method = self.methods.get(name)
        if method is None or name in seen:
            return False
        heads = {item.partition(".")[0] for item in self.lists}
        attrs = {node.attr for node in ast.walk(method) if isinstance(node, ast.Attribute)}
        return bool(attrs & heads) or any(self.reaches_blocks(a, seen | {name}) for a in attrs)

    def call_method(self, method: ast.FunctionDef, node: ast.Call) -> Labels:
        """Walk a method of the class in place of the call `node` to it."""
        given = [self.visit(arg) for arg in node.args]
        named = {k.arg: self.visit(k.value) for k in node.keywords}
        kept = {k: v for k, v in self.scope.labels.items() if k.startswith("self.")}
        caller, self.scope = self.scope, Scope(labels=kept)
        names = [arg.arg for arg in (*method.args.args, *method.args.kwonlyargs)][1:]
        self.scope.labels.update(zip(names, given, strict=False))
        self.scope.labels.update({name: labels for name, labels in named.items() if name})
        self.depth += 1
        if self.depth < 6:
            self.body(method.body)
        self.depth -= 1
        labels = self.scope.result
        caller.labels.update({k: v for k, v in self.scope.labels.items() if k.startswith("self.")})
        self.scope = caller
        return labels
