"""Small requests, pictures and runs for the tests of `diffbatch.output`."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np

from diffbatch.output.folder import RunFolder
from diffbatch.output.resume import Resume
from diffbatch.output.writer import OutputWriter, WriterConfig
from diffbatch.req import OutputBatch, Req, SamplingParams, content_id, params_key

HARD_PROMPT = 'say "hi", 一只猫 🌟; x=1 #c \\ back\nsecond line\n[CHAPTER]\nNegative prompt: {a|b}'


def make_req(index: int = 0, prompt: str = "a red circle", file: str = "", **params: Any) -> Req:
    sampling = SamplingParams(
        **{"height": 16, "width": 16, "num_inference_steps": 4, "guidance_scale": 4.0, **params}
    )
    return Req(
        index=index,
        id=content_id("tiny", params_key(sampling), prompt, 7),
        prompt=prompt,
        seed=7,
        file=file or f"{index:05d}-{prompt.split()[-1]}-7.png",
        params=sampling,
    )


def frames_of(prompt: str, num_frames: int = 1, height: int = 16, width: int = 16) -> np.ndarray:
    """Pixels that depend on the prompt alone."""
    rng = np.random.default_rng(list(prompt.encode()))
    return rng.integers(0, 256, (num_frames, height, width, 3), dtype=np.uint8)


def batch_of(reqs: Sequence[Req], frames: Sequence[np.ndarray | None] | None = None) -> OutputBatch:
    pixels = tuple(frames_of(req.prompt) for req in reqs) if frames is None else tuple(frames)
    return OutputBatch(
        reqs=tuple(reqs), frames=pixels, errors=(None,) * len(reqs), stage_s={"denoise": 1.0}
    )


def config(root: Path, name: str = "replica-0", **more: Any) -> WriterConfig:
    return WriterConfig(root=root, name=name, model="tiny", **more)


def run_job(root: Path, reqs: Sequence[Req], **options: Any) -> Resume:
    """What `diffbatch run` does with the folder, with random pixels for a model."""
    with RunFolder(root) as folder:
        resume = folder.reconcile(reqs, **options)
        with OutputWriter(config(root)) as writer:
            for req in reqs:
                writer.put(batch_of([req]), resume.pending)
        folder.merge(reqs)
    return resume


def files_in(root: Path) -> dict[str, bytes]:
    """Name -> bytes of the outputs and anything unexpected; not the run's own books."""
    own = {"manifest.jsonl", "run.json"}
    return {
        name: path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
        and (name := path.relative_to(root).as_posix()) not in own
        and not name.startswith("manifest/")
    }


def ffmpeg(*arguments: str) -> subprocess.CompletedProcess[str]:
    exe = imageio_ffmpeg.get_ffmpeg_exe()
    return subprocess.run(
        [exe, "-hide_banner", *arguments], capture_output=True, text=True, check=False
    )
