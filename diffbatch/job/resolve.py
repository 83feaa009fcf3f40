"""Sampling parameters of a request from all layers, checked once per distinct set of values."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from diffbatch.errors import JobError
from diffbatch.job.problems import Problems
from diffbatch.job.textfile import check_is_file
from diffbatch.req import SamplingParams, params_key

Modality = Literal["image", "video"]

_STILL_FORMATS = ("png", "jpg", "webp")
_NUM_CACHED_MAX = 50_000  # a job with a distinct negative prompt per row must not fill memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """One distinct set of sampling parameters, and what follows from it."""

    params: SamplingParams
    key: str  # `params_key`, for the id
    suffix: str  # of the file, with its dot


class Resolver:
    """Interns `SamplingParams`: a million rows with equal values share one instance."""

    def __init__(
        self,
        *,
        modality: Modality,
        file_format: str | None,
        check: Callable[[SamplingParams], list[str]],
        effective: Callable[[SamplingParams], SamplingParams],
        forced_places: Mapping[str, str],
        problems: Problems,
    ) -> None:
        """`forced_places`: where the values were typed that every request has, by name."""
        self._modality = modality
        self._format = file_format
        self._check = check
        self._effective = effective
        self._forced_places = forced_places
        self._reported: set[str] = set()  # messages about forced values
        self._problems = problems
        self._cache: dict[SamplingParams, Resolved | None] = {}
        self._image_sha256: dict[str, str] = {}

    def resolve(self, values: Mapping[str, Any], place: str) -> Resolved | None:
        """The parameters for these values; None when they are wrong, which is then reported."""
        asked = SamplingParams(**values)
        try:
            return self._cache[asked]
        except KeyError:
            if len(self._cache) >= _NUM_CACHED_MAX:
                self._cache.clear()
            self._cache[asked] = found = self._make(asked, place)
            return found

    def _make(self, asked: SamplingParams, place: str) -> Resolved | None:
        params = asked
        messages: list[str] = []
        if asked.image is not None:
            try:
                params = replace(asked, image_sha256=self._hash(asked.image))
            except JobError as error:
                messages += [problem.message for problem in error.problems]
        messages += self._check(params)
        is_still = self._modality == "image" or params.num_frames == 1
        if self._format in _STILL_FORMATS and not is_still:
            frames = f"{params.num_frames} frames" if params.num_frames else "several frames"
            remedy = "use mp4, gif, webm or npy, or num_frames: 1"
            messages.append(f"format {self._format} cannot hold {frames}; {remedy}")
        for message in messages:
            self._report(place, message)
        if messages:
            return None
        params = self._effective(params)
        suffix = f".{self._format or ('png' if is_still else 'mp4')}"
        return Resolved(params=params, key=params_key(params), suffix=suffix)

    def _report(self, place: str, message: str) -> None:
        """A message that begins with the name of a forced value is about that: said once."""
        forced = self._forced_places.get(message.partition(" ")[0])
        if forced is None:
            self._problems.add(place, message)
        elif message not in self._reported:
            self._reported.add(message)
            self._problems.add(forced, message)

    def _hash(self, path: str) -> str:
        found = self._image_sha256.get(path)
        if found is None:
            check_is_file(Path(path), "", what="image")
            try:
                with open(path, "rb") as stream:
                    found = hashlib.file_digest(stream, "sha256").hexdigest()
            except OSError as error:
                raise JobError(f"cannot read the image {path}: {error.strerror}") from error
            self._image_sha256[path] = found
        return found


def absolute_image(values: dict[str, Any], base: Path) -> dict[str, Any]:
    """`values` with the image's path made absolute; each layer has its own base folder."""
    if "image" in values:
        values["image"] = str((base / Path(values["image"]).expanduser()).absolute())
    return values
