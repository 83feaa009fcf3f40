"""The parent's side of `run --profile`: traces of an earlier run go, new ones are announced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffbatch.launch.summary import shown
from diffbatch.output.layout import PROFILE, traces

_VIEWERS = "https://ui.perfetto.dev or chrome://tracing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """The traces of one run in the folder `root`; without `wanted` it has nothing to say."""

    root: Path
    wanted: bool
    had_work: bool

    def forget_old(self) -> None:
        """So that every trace that is there in the end is of this run, also with fewer ranks."""
        if self.wanted and self.had_work:
            for path in traces(self.root):
                path.unlink(missing_ok=True)

    def as_dict(self) -> dict[str, Any]:
        """What the last line of `--json` adds: their names, relative to the run folder."""
        found = traces(self.root) if self.had_work else []
        return {"profile": [f"{PROFILE}/{path.name}" for path in found]} if self.wanted else {}

    def lines(self) -> Iterator[str]:
        """What to say of them at the end."""
        if not self.wanted:
            return
        if not self.had_work:
            yield "nothing was profiled: there was nothing to make"
            return
        num = len(traces(self.root))
        if not num:
            yield "nothing was profiled: the run ended before any rank came to its turns"
            return
        what = "1 trace" if num == 1 else f"{num} traces, one per rank"
        yield f"{what}: {shown(self.root / PROFILE)} (for {_VIEWERS})"
