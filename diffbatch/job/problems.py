"""What is wrong with a job, collected so that everything is reported at once.

Every part of `job/` adds to one `Problems`; places are `file:line` or the option that was typed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from diffbatch.errors import JobError, Problem

KeyPath = tuple[str | int, ...]

_NUM_SHOWN_MAX = 20  # more lines than this hide the first cause


class Problems:
    """A growing list of problems. Keeps the first ones and counts the rest: bounded memory."""

    def __init__(self) -> None:
        self._shown: list[Problem] = []
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def add(self, place: str, message: str) -> None:
        """Take down one problem."""
        self._num += 1
        if len(self._shown) < _NUM_SHOWN_MAX:
            self._shown.append(Problem(place, message))

    def add_error(self, error: JobError) -> None:
        """Take over the problems of an error that ended one source or one value."""
        for problem in error.problems:
            self.add(problem.place, problem.message)

    def raise_if_any(self) -> None:
        """End the command if anything was wrong."""
        if not self._num:
            return
        rest = self._num - len(self._shown)
        more = [Problem("", f"and {rest} more")] if rest else []
        raise JobError([*self._shown, *more])


def path_text(path: Iterable[str | int]) -> str:
    """A key path as users write it: `prompts[3].seed`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that `name` was probably meant to be, or None.

    Spelling first; then a valid name that has `name` as one of its words, because people
    write `steps` for `num_inference_steps`.
    """
    names = list(valid)
    folded = {candidate.casefold(): candidate for candidate in names}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.65)
    if close:
        return folded[close[0]]
    words = [candidate for candidate in names if name.casefold() in candidate.casefold().split("_")]
    return words[0] if words else None


def suggestion(name: str, valid: Iterable[str], *, what: str = "valid") -> str:
    """The second half of an "unknown name" message: the nearest name, or all of them."""
    names = list(valid)
    found = nearest(name, names)
    if found is not None:
        return f"did you mean {found!r}?"
    return f"{what}: {', '.join(names)}" if names else f"there is no {what} name"
