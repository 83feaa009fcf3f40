"""Which modules of a class loading keeps in fp32, and which stored tensors it passes over. Pure.

Read from the installed source of diffusers and transformers, without importing them.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

from diffbatch.errors import PlanError
from diffbatch.plan.chain import attribute_of_name

_KEPT, _IGNORED = "_keep_in_fp32_modules", "_keys_to_ignore_on_load_unexpected"


@cache
def kept_in_fp32(class_name: str, dtype: str) -> frozenset[str]:
    """Names of modules whose weights stay in fp32 when the model is loaded in `dtype`.

    diffusers does so in both half precisions, transformers in float16 alone.
    """
    if dtype == "float32":
        return frozenset()
    try:
        return _strings(attribute_of_name(class_name, _KEPT))
    except PlanError:  # no class of diffusers
        return _of_transformers(class_name) if dtype == "float16" else frozenset()


@cache
def ignored_patterns(class_name: str) -> frozenset[str]:
    """Patterns of stored tensors that loading a diffusers class passes over."""
    try:
        return _strings(attribute_of_name(class_name, _IGNORED))
    except PlanError:
        return frozenset()


def _of_transformers(class_name: str) -> frozenset[str]:
    classes = _classes_beside(class_name)
    todo = [class_name]
    while todo:
        node = classes.get(todo.pop(0))
        if node is None:
            continue
        for item in node.body:
            if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == _KEPT:
                return _strings(item.value)
        todo += [base.id for base in node.bases if isinstance(base, ast.Name)]
    return frozenset()


def _classes_beside(class_name: str) -> dict[str, ast.ClassDef]:
    """The classes of the file that defines `class_name`; its bases are among them."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return {}
    pattern = re.compile(rf"^class {re.escape(class_name)}\b", re.MULTILINE)
    for path in sorted(Path(spec.origin).parent.glob("models/*/modeling_*.py")):
        source = path.read_text(encoding="utf-8")
        if pattern.search(source) is not None:
            return {n.name: n for n in ast.parse(source).body if isinstance(n, ast.ClassDef)}
    return {}


def _strings(value: ast.expr | None) -> frozenset[str]:
    if value is None or (isinstance(value, ast.Constant) and value.value is None):
        return frozenset()
    found = ast.literal_eval(value)
    return frozenset([found] if isinstance(found, str) else found)
