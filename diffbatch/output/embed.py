"""The parameters that travel inside a file, so that a picture alone can tell how it was made.

Only what determines the pixels goes in. Time, path, index, file name, rank and layout stay out:
the same request gives the same bytes wherever and whenever it runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from diffbatch.req import Req

_TITLE_LENGTH = 200
_NAMES = (
    ("num_inference_steps", "Steps"),
    ("guidance_scale", "CFG scale"),
    ("guidance_scale_2", "CFG scale 2"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """One request's parameters in the forms that the formats carry."""

    text: str  # the A1111 form that picture viewers and web UIs read
    values: dict[str, Any]
    title: str  # the prompt on one line, for players

    def json(self, *, ascii_only: bool = False) -> str:
        """One line; control characters of the prompt arrive escaped."""
        return json.dumps(self.values, ensure_ascii=ascii_only, sort_keys=True)


def embedded(req: Req, model: str, height: int, width: int) -> Embedded:
    """What to write into the file of `req`; `model` is a label, never a path.

    The image that a request starts from is named by its hash. The second of two equal requests
    carries the same id as the first: their files are equal.
    """
    params = req.params.as_dict()
    params.pop("image", None)
    values = {
        "generator": "diffbatch",
        "id": req.id.partition("-")[0],
        "model": model,
        "params": params,
        "prompt": req.prompt,
        "seed": req.seed,
    }
    return Embedded(
        text=_readable(req, params, model, f"{width}x{height}"),
        values=values,
        title=" ".join(req.prompt.split())[:_TITLE_LENGTH],
    )


def shortened(meta: Embedded, length: int) -> Embedded:
    """The same with every text cut to `length` characters and marked, for formats with a limit."""

    def cut(value: Any) -> Any:
        return value[:length] if isinstance(value, str) else value

    values = {name: cut(value) for name, value in meta.values.items()}
    values["params"] = {name: cut(value) for name, value in meta.values["params"].items()}
    values["cut"] = True
    return Embedded(text=meta.text[:length], values=values, title=meta.title)


def _readable(req: Req, params: dict[str, Any], model: str, size: str) -> str:
    """`prompt`, `Negative prompt: ...`, then one line of `Name: value` pairs, `Steps` first."""
    pairs = [(label, params[name]) for name, label in _NAMES if name in params]
    pairs += [("Seed", req.seed), ("Size", size)]
    pairs += [("Frames", params["num_frames"])] if params.get("num_frames", 1) != 1 else []
    pairs += [("Model", _quoted(model))]
    lines = [req.prompt]
    if req.params.negative_prompt:
        lines.append(f"Negative prompt: {req.params.negative_prompt}")
    lines.append(", ".join(f"{label}: {value}" for label, value in pairs))
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Readers split the last line at commas and colons; they undo JSON quotes around a value."""
    return json.dumps(text, ensure_ascii=False) if any(c in text for c in ',:\n"') else text
