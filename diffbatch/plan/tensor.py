"""Tensor parallelism as data: which tensors of a class are cut over ranks, and what forbids it.

Pure: the plan and every worker read the same `TensorPlan` of a class, from diffusers' own
`_tp_plan` or from our table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import gcd
from typing import Literal

from diffbatch.errors import PlanError
from diffbatch.plan.chain import attribute_of_name
from diffbatch.plan.layout import Layout
from diffbatch.plan.tensor_plans import HEADS, STYLES

Kind = Literal["colwise", "rowwise", "norm"]

# The dim that is cut. The bias of a rowwise layer stays whole: it is added after the sum.
_DIMS: dict[str, dict[Kind, int]] = {
    "weight": {"colwise": 0, "rowwise": 1, "norm": 0},
    "bias": {"colwise": 0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShare:
    """The place of one rank among those that share out its tensors."""

    tp: int = 1
    rank: int = 0  # on the tp axis


WHOLE = TensorShare()


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of a tensor that one rank owns: ranges of indices of dim `dim`, side by side."""

    dim: int
    ranges: tuple[range, ...]

    @property
    def length(self) -> int:
        """Size of dim `dim` on this rank."""
        return sum(len(part) for part in self.ranges)


@dataclass(frozen=True, slots=True)
class Style:
    """How one module is cut.

    "colwise": a linear layer by outputs; "rowwise": by inputs, its results are summed over ranks;
    "norm": an RMS norm over all heads, whose mean square is summed over ranks. A packed layer is
    several layers side by side, each cut for itself: `blocks` are their sizes in proportion (empty:
    the layer says it).
    """

    kind: Kind
    packed: bool = False
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlan:
    """Which modules of a class are cut, by path; `*` stands for a number in a list.

    Modules that match no path stay whole on every rank. `heads` are attention modules that count
    their heads in an attribute `heads`, which becomes that of one rank.
    """

    styles: Mapping[str, Style]
    heads: tuple[str, ...] = ()
    _patterns: tuple[tuple[re.Pattern[str], Style], ...] = field(init=False, repr=False)
    _heads: tuple[re.Pattern[str], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        patterns = tuple((_pattern(path), style) for path, style in self.styles.items())
        object.__setattr__(self, "_patterns", patterns)
        object.__setattr__(self, "_heads", tuple(_pattern(path) for path in self.heads))

    def style_of(self, path: str) -> Style | None:
        """How the module at `path` is cut; None where it stays whole."""
        return next((style for pattern, style in self._patterns if pattern.fullmatch(path)), None)

    def counts_heads(self, path: str) -> bool:
        """Whether the module at `path` counts its heads."""
        return any(pattern.fullmatch(path) for pattern in self._heads)

    def dim_of(self, key: str) -> int | None:
        """The dim in which tensor `key` is cut in tp equal parts; None where it stays whole."""
        path, _, own = key.rpartition(".")
        style = self.style_of(path)
        return None if style is None else _DIMS.get(own, {}).get(style.kind)


def slice_of(dim: int, sizes: Sequence[int], share: TensorShare) -> Slice:
    """This rank's part of each of the blocks, `sizes` long, that lie side by side in dim `dim`."""
    ranges, start = [], 0
    for size in sizes:
        part = size // share.tp
        ranges.append(range(start + share.rank * part, start + (share.rank + 1) * part))
        start += size
    return Slice(dim, tuple(ranges))


@cache
def tensor_plan_of(class_name: str) -> TensorPlan | None:
    """The plan of a diffusers class: diffusers' own where it has one, else ours, else None.

    Read from the installed source, without importing it. PlanError for an unknown class.
    """
    own = attribute_of_name(class_name, "_tp_plan")
    if own is not None:
        return TensorPlan(styles=dict(_parse(class_name, own)))
    if class_name not in STYLES:
        return None
    styles = {path: Style(kind) for path, kind in STYLES[class_name].items()}
    return TensorPlan(styles=styles, heads=HEADS.get(class_name, ()))


def tensor_problem(
    class_name: str,
    layout: Layout,
    *,
    heads: int,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> str | None:
    """Why this class cannot run with the layout's tp, or None.

    `heads` is what `heads_of` gives, `shapes` are those of the stored tensors.
    """
    tp = layout.tp
    if tp == 1:
        return None
    plan = tensor_plan_of(class_name)
    if plan is None:
        return (
            f"{class_name} has no plan for tensor parallelism, neither in diffusers nor here; "
            "use --tp 1, and --pp to share out its weights"
        )
    if (problem := heads_problem(class_name, layout, heads)) is not None:
        return problem
    for name, shape in (shapes or {}).items():
        dim = plan.dim_of(name)
        if dim is not None and shape[dim] % tp:
            return (
                f"tp {tp} does not divide {name} of {class_name}, which has {shape[dim]} in dim "
                f"{dim}; nearest: {nearest_degrees(shape[dim], tp)}"
            )
    return None


def heads_of(config: Mapping[str, object]) -> int:
    """The number that every degree must divide which shares out heads, from a config.json.

    That of the heads, or the greatest common divisor where streams have their own. PlanError
    without one.
    """
    found = [
        value
        for key, value in config.items()
        if key.endswith("num_attention_heads") and isinstance(value, int)
    ]
    if not found:
        raise PlanError("the config of the transformer names no num_attention_heads; use --tp 1")
    return gcd(*found)


def heads_problem(class_name: str, layout: Layout, heads: int) -> str | None:
    """Why the heads cannot be shared out over tp and ulysses, which both take whole heads."""
    degrees = {"tp": layout.tp, "ulysses": layout.ulysses}
    used = {axis: degree for axis, degree in degrees.items() if degree > 1}
    degree = layout.tp * layout.ulysses
    if heads % degree == 0:
        return None
    factors = " x ".join(f"{axis} {count}" for axis, count in used.items())
    total = f"{factors} = {degree}" if len(used) > 1 else factors
    near = nearest_degrees(heads, degree)
    return f"{total} does not divide the {heads} heads of {class_name}; nearest: {near}"


def nearest_degrees(count: int, degree: int) -> str:
    """The divisors of `count` next to `degree`, below and above: "2 or 4"."""
    divisors = [value for value in range(1, count + 1) if count % value == 0]
    below = [value for value in divisors if value <= degree][-1:]
    above = [value for value in divisors if value > degree][:1]
    return " or ".join(str(value) for value in below + above)


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.escape(path).replace(r"\*", r"\d+"))


def _parse(class_name: str, plan: ast.expr) -> Iterator[tuple[str, Style]]:
    """The entries of a `_tp_plan`: "colwise", "rowwise", or a call of a Packed... class."""
    if not isinstance(plan, ast.Dict):
        raise PlanError(f"the _tp_plan of {class_name} is not written as a dict; use --tp 1")
    for key, value in zip(plan.keys, plan.values, strict=True):
        style = _style(value)
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)) or style is None:
            entry = ast.unparse(value)
            raise PlanError(f"the _tp_plan of {class_name} has {entry}, unknown here; use --tp 1")
        yield key.value, style


def _style(value: ast.expr) -> Style | None:
    kinds: dict[str, Kind] = {"Colwise": "colwise", "Rowwise": "rowwise"}
    if isinstance(value, ast.Constant):
        kind = kinds.get(str(value.value).capitalize())
        return None if kind is None else Style(kind)
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return None
    name = value.func.id.removeprefix("Packed").removesuffix("Parallel")
    if name not in kinds or not value.func.id.startswith("Packed") or value.keywords:
        return None
    return Style(kinds[name], packed=True, blocks=tuple(_numbers(value.args)))


def _numbers(arguments: Iterable[ast.expr]) -> Iterator[int]:
    for argument in arguments:
        yield from (int(number) for number in ast.literal_eval(argument))
