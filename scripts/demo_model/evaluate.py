"""Measure a demo model folder: how often its pictures show what the prompts say.

`python -m demo_model.evaluate FOLDER` prints the table of the model card; `--sheet` also writes
the pictures as one image.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from diffusers import WanPipeline
from PIL import Image

from demo_model.draw import SIDE_PX, Scene, held_out_prompts
from diffbatch.models.demo.checker import Picture, Seen, look

GUIDANCE_SCALE = 4.0
NUM_STEPS = 20
BATCH = 8


def load(folder: Path) -> WanPipeline:
    """The folder as a plain fp32 pipeline without a progress bar."""
    pipeline = WanPipeline.from_pretrained(folder, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def draw(
    pipeline: WanPipeline,
    prompts: list[str],
    *,
    guidance_scale: float = GUIDANCE_SCALE,
    negative_prompt: str = "",
    first_seed: int = 0,
) -> list[Picture]:
    """One picture per prompt, (SIDE_PX, SIDE_PX, 3) uint8; prompt k has seed first_seed + k."""
    pictures: list[Picture] = []
    for start in range(0, len(prompts), BATCH):
        batch = prompts[start : start + BATCH]
        seeds = range(first_seed + start, first_seed + start + len(batch))
        frames = pipeline(
            batch,
            negative_prompt=[negative_prompt] * len(batch),
            height=SIDE_PX,
            width=SIDE_PX,
            num_frames=1,
            num_inference_steps=NUM_STEPS,
            guidance_scale=guidance_scale,
            generator=[torch.Generator("cpu").manual_seed(seed) for seed in seeds],
            output_type="np",
        ).frames
        pictures += list((frames[:, 0] * 255).round().astype(np.uint8))
    return pictures


def score(seen: list[Seen], scenes: list[Scene]) -> dict[str, float]:
    """The shares of pictures that are right, per attribute and altogether."""
    pairs = list(zip(seen, scenes, strict=True))
    right = {
        name: [getattr(s, name) == getattr(scene, name) for s, scene in pairs]
        for name in ("background", "colour", "shape")
    }
    right["all at once"] = [all(row) for row in zip(*right.values(), strict=True)]
    return {name: sum(rows) / len(rows) for name, rows in right.items()}


def sheet(pictures: list[Picture], columns: int = 12) -> Image.Image:
    """The pictures side by side, in reading order."""
    blank = np.full_like(pictures[0], 255)
    rows = [pictures[k : k + columns] for k in range(0, len(pictures), columns)]
    rows[-1] = rows[-1] + [blank] * (columns - len(rows[-1]))
    return Image.fromarray(np.concatenate([np.concatenate(row, axis=1) for row in rows], axis=0))


def main() -> None:
    """Print accuracy, confusions, speed and what guidance and the negative prompt do."""
    parser = argparse.ArgumentParser(description="Measure a demo model folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=int, default=120)
    parser.add_argument("--sheet", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    pipeline = load(options.folder)
    prompts, scenes = zip(*held_out_prompts(options.prompts), strict=True)
    started = time.monotonic()
    pictures = draw(pipeline, list(prompts))
    pace_s = (time.monotonic() - started) / len(prompts)
    print(f"{pace_s:.2f} s a picture, one thread, batches of {BATCH}")
    if options.sheet:
        sheet(pictures).save(options.sheet)
    seen = [look(picture) for picture in pictures]
    for name, share in score(seen, list(scenes)).items():
        print(f"{name}: {share:.1%}")
    _print_confusions(seen, list(scenes))
    _print_guidance(pipeline, list(prompts[:24]), list(scenes[:24]))
    _print_negative(pipeline)


def _print_confusions(seen: list[Seen], scenes: list[Scene]) -> None:
    for name in ("background", "colour", "shape"):
        swaps = Counter(
            (getattr(scene, name), getattr(s, name))
            for s, scene in zip(seen, scenes, strict=True)
            if getattr(s, name) != getattr(scene, name)
        )
        told = ", ".join(
            f"{asked} drawn {got} ({num})" for (asked, got), num in swaps.most_common()
        )
        print(f"{name} confusions: {told or 'none'}")


def _print_guidance(pipeline: WanPipeline, prompts: list[str], scenes: list[Scene]) -> None:
    for scale in (1.0, 2.0, 4.0, 7.0):
        pictures = draw(pipeline, prompts, guidance_scale=scale)
        shares = score([look(picture) for picture in pictures], scenes)
        print(f"guidance {scale}: all at once {shares['all at once']:.1%} of {len(prompts)}")


def _print_negative(pipeline: WanPipeline) -> None:
    prompts = ["a red square"] * 32
    for negative in ("", "white background", "black background"):
        seen = [look(picture) for picture in draw(pipeline, prompts, negative_prompt=negative)]
        counts = Counter(s.background for s in seen).most_common()
        print(f"'a red square', negative '{negative}': backgrounds {counts}")


if __name__ == "__main__":
    main()
