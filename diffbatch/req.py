"""The nouns that travel down the data path: what is asked for, and what comes out.

Plain frozen data, no torch. `job/` makes `Req`s, `plan/` groups them into `MicroBatch`es,
`pipeline/` turns a micro-batch into an `OutputBatch`, `output/` writes it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Frames = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What shapes the pixels besides prompt and seed. Names are those of diffusers' pipeline calls.

    None means "the model decides": for models whose defaults diffbatch knows it never stays None.
    Many Reqs share one instance.
    """

    negative_prompt: str | None = None
    image: str | None = None  # absolute path of the conditioning image
    image_sha256: str | None = None  # of the image's bytes; stands for the path in the id
    height: int | None = None  # pixels
    width: int | None = None  # pixels
    num_frames: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    guidance_scale_2: float | None = None  # second transformer (low noise), where a model has one
    max_sequence_length: int | None = None  # text tokens
    fps: int | None = None  # frames per second of a clip's file

    def as_dict(self) -> dict[str, Any]:
        """The values that are set, by name, in field order."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in values if value is not None}


PARAM_NAMES = tuple(f.name for f in fields(SamplingParams) if f.name != "image_sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class Req:
    """One output file that was asked for."""

    index: int  # position in the expanded job, from 0
    id: str  # `content_id`, with "-1", "-2", ... for the second, third, ... equal request of a job
    prompt: str
    seed: int  # 0 .. 2**64 - 1
    file: str  # final name, relative to the run folder, with its suffix
    params: SamplingParams

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form; `req_from_dict` reads it back."""
        return {
            "index": self.index,
            "id": self.id,
            "prompt": self.prompt,
            "seed": self.seed,
            "file": self.file,
            "params": self.params.as_dict(),
        }


def req_from_dict(data: dict[str, Any]) -> Req:
    """The inverse of `Req.as_dict`. An unknown key is a TypeError."""
    return Req(**{**data, "params": SamplingParams(**data["params"])})


def params_key(params: SamplingParams) -> str:
    """Canonical JSON of what in `params` determines pixels (the image by content, not by path)."""
    values = params.as_dict()
    values.pop("image", None)
    return json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def content_id(model_key: str, params: str, prompt: str, seed: int) -> str:
    """24 hex digits of a hash over everything that determines the pixels.

    `model_key` names the weights and how they are run (see `ModelFacts.key`), `params` comes from
    `params_key`. Never depends on rank, path, order or world size. Lengths go in front of the
    texts, so no two different requests hash the same bytes.
    """
    head = f"{len(model_key)}:{model_key}{len(params)}:{params}{seed}:"
    return hashlib.blake2b((head + prompt).encode(), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Reqs that go through one forward together; they share one `SamplingParams` but for texts.

    `reqs` is the full composition, which the job alone decides. `write` holds the ids that are
    still to be made: after a resume the others run along, so that pixels stay the same.
    """

    reqs: tuple[Req, ...]
    write: frozenset[str]
    cost: float = 0.0  # branches x steps x tokens, arbitrary unit
    keep_frames: bool = False  # also save each output's raw frames, for a caller that wants them

    def halves(self) -> tuple[MicroBatch, MicroBatch]:
        """Two micro-batches with half of the Reqs each, for when memory runs out."""
        middle = len(self.reqs) // 2
        return self._part(self.reqs[:middle]), self._part(self.reqs[middle:])

    def _part(self, reqs: tuple[Req, ...]) -> MicroBatch:
        write = self.write & {req.id for req in reqs}
        return replace(self, reqs=reqs, write=write, cost=self.cost * len(reqs) / len(self.reqs))

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form; `micro_batch_from_dict` reads it back."""
        return {
            "reqs": [req.as_dict() for req in self.reqs],
            "write": sorted(self.write),
            "cost": self.cost,
            "keep_frames": self.keep_frames,
        }


def micro_batch_from_dict(data: dict[str, Any]) -> MicroBatch:
    """The inverse of `MicroBatch.as_dict`."""
    reqs = tuple(req_from_dict(req) for req in data["reqs"])
    return MicroBatch(**{**data, "reqs": reqs, "write": frozenset(data["write"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputBatch:
    """What one micro-batch became, on the leader of a replica, ready for `output/`.

    `frames[k]` belongs to `reqs[k]`: uint8 (F, H, W, 3), channels last, 0..255; None where
    `errors[k]` says why there is none.
    """

    reqs: tuple[Req, ...]
    frames: tuple[Frames | None, ...]
    errors: tuple[str | None, ...]
    stage_s: dict[str, float] = field(default_factory=dict)  # seconds per stage of the micro-batch
    peak_memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHead:
    """What a resume looks at in a Record, read without the rest of the line."""

    id: str
    index: int
    status: str  # "ok" or "failed"
    file: str
    bytes: int | None = None  # of the file
    error: str | None = None
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(RecordHead):
    """One manifest line: what became of one Req."""

    prompt: str
    seed: int
    params: dict[str, Any]
    sha256: str | None = None  # of the file's bytes
    height: int | None = None  # of the file, pixels
    width: int | None = None
    num_frames: int | None = None
    flat: bool = False  # every pixel of the output has one value
    replica: int = 0
    ranks: tuple[int, ...] = ()
    stage_s: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form in field order."""
        return asdict(self)
