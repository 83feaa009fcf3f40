"""The block chain of a model object, on the meta device or real."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping

from torch import nn

from diffbatch.plan.chain import BlockChain, chain_of, methods_in


def find_chain(model: nn.Module) -> BlockChain:
    """The blocks of `model` that pipeline ranks share out. Needs no weights and runs nothing.

    PlanError, naming the class and the reason, when it cannot be cut.
    """
    keys = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return chain_of(type(model).__name__, _methods(type(model)), keys)


def _methods(cls: type[nn.Module]) -> Mapping[str, ast.FunctionDef]:
    methods: dict[str, ast.FunctionDef] = {}
    for base in reversed(cls.__mro__):
        if base not in (object, nn.Module) and not base.__name__.endswith("Mixin"):
            methods.update(_own_methods(base))
    return methods


def _own_methods(cls: type) -> Mapping[str, ast.FunctionDef]:
    try:
        tree = ast.parse(inspect.getsource(inspect.getmodule(cls) or cls))
    except (OSError, TypeError):  # made at run time, or compiled: its methods cannot be read
        return {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            return methods_in(node)
    return {}
