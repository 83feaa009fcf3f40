"""Sequence parallelism in the plan: what diffusers' `_cp_plan` of a class splits, what forbids it.

Pure; the source of the installed diffusers is read, not imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from diffbatch.plan.chain import attribute_of_name
from diffbatch.plan.checks import nearest
from diffbatch.plan.layout import Layout
from diffbatch.plan.tensor import heads_problem


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """The arguments, of the model or of modules in it, whose tokens are split over ranks."""

    inputs: frozenset[str]

    @property
    def splits_text(self) -> bool:
        """Whether text tokens are split, as in joint attention, and so must split evenly, too."""
        return "encoder_hidden_states" in self.inputs

    @property
    def masked(self) -> bool:
        """Whether attention takes a mask of tokens, which a ring cannot pass around."""
        return any(name.endswith("mask") for name in self.inputs)


@cache
def sequence_plan_of(class_name: str) -> SequencePlan | None:
    """What the `_cp_plan` of a diffusers class splits; None for a class without one.

    PlanError for an unknown class.
    """
    plan = attribute_of_name(class_name, "_cp_plan")
    if plan is None:
        return None
    names = [
        key.value
        for node in ast.walk(plan)
        if isinstance(node, ast.Dict) and node is not plan
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    ]
    return SequencePlan(frozenset(names))


def sequence_problem(
    class_name: str,
    layout: Layout,
    *,
    heads: int,
    tokens: Iterable[int] = (),
    on_cpu: bool = True,
    dtype: str = "float32",
) -> str | None:
    """Why this class cannot run with the layout's ulysses and ring, or None.

    `heads` is what `heads_of` gives, `tokens` are the lengths of the sequences that are split:
    latent tokens, and those of the text where `splits_text`.
    """
    degree = layout.ulysses * layout.ring
    if degree == 1:
        return None
    plan = sequence_plan_of(class_name)
    if plan is None:
        return (
            f"{class_name} has no plan for sequence parallelism (_cp_plan) in diffusers; use "
            "--ulysses 1 and --ring 1, and --pp or --replicas to use more ranks"
        )
    if (problem := heads_problem(class_name, layout, heads)) is not None:
        return problem
    if layout.ring > 1 and plan.masked:
        return f"{class_name} masks its attention, which ring cannot split; use --ulysses instead"
    if layout.ring > 1 and not on_cpu and dtype == "float32":
        return (
            "ring needs attention that returns the log-sum-exp, which torch has in float32 only on "
            "the CPU; use dtype bfloat16 or float16, or --ulysses"
        )
    return _token_problem(class_name, layout, tokens)


def is_uneven(layout: Layout, tokens: Iterable[int]) -> bool:
    """Whether one of the sequences does not split evenly, so that `uneven` must be switched on."""
    degree = layout.ulysses * layout.ring
    return any(count % degree for count in tokens)


def _token_problem(class_name: str, layout: Layout, tokens: Iterable[int]) -> str | None:
    degree = layout.ulysses * layout.ring
    for count in tokens:
        if count < degree:
            return f"{class_name} cannot split {count} tokens over {degree} ranks; lower ulysses"
        if count % degree and layout.ulysses > 1 and layout.ring > 1:
            return (
                f"ulysses {layout.ulysses} x ring {layout.ring} = {degree} does not divide a "
                f"sequence of {count} tokens, and only one of the two alone takes uneven parts; "
                f"nearest: {nearest(count, degree)} tokens, or use --ring 1"
            )
    return None
