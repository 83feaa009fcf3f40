"""Prompts with placeholders: `a {color} {shape}` and lists of values for them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from diffbatch.job.problems import suggestion

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class PlaceholderError(ValueError):
    """A prompt and its `with` do not fit together."""


def prompts_of(
    prompt: str, values: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Every combination, the last key fastest: the prompt, and what its placeholders stand for.

    Braces that are part of the text are doubled. Without `with` a prompt is taken as it is.
    """
    parts = _parse(prompt, values)
    names = list(values)
    for combination in itertools.product(*values.values()):
        chosen = dict(zip(names, combination, strict=True))
        yield "".join(chosen[text] if is_name else text for text, is_name in parts), chosen


def _parse(prompt: str, values: Mapping[str, Sequence[str]]) -> list[tuple[str, bool]]:
    """Literal texts and placeholder names (True), in order."""
    parts: list[tuple[str, bool]] = []
    end = 0
    for found in _TOKEN.finditer(prompt):
        parts.append((prompt[end : found.start()], False))
        end = found.end()
        name = found[1]
        if name is not None:
            if name not in values:
                hint = suggestion(name, values, what="names in `with`")
                raise PlaceholderError(
                    f"unknown placeholder {{{name}}}; {hint} (a brace of the text is written twice)"
                )
            parts.append((name, True))
        elif len(found[0]) == 2:
            parts.append((found[0][0], False))
        else:
            brace = found[0]
            raise PlaceholderError(f"a single {brace!r} in the prompt; write {brace * 2!r}")
    parts.append((prompt[end:], False))
    used = {text for text, is_name in parts if is_name}
    unused = [name for name in values if name not in used]
    if unused:
        raise PlaceholderError(
            f"the prompt has no {{{unused[0]}}}; use it or remove it from `with`"
        )
    return parts
