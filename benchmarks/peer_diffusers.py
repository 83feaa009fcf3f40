"""What people run without diffbatch: diffusers alone, or split by accelerate. See peers.py.

python peer_diffusers.py WORK.json OUTPUT --batch 8: draws the requests of WORK.json in batches and
saves each picture as it comes. With `--accelerate` every process takes its share with
`split_between_processes`, as accelerate's guide to distributed inference teaches. Each process
writes the seconds from its first call to its last saved picture into OUTPUT/times-RANK.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--accelerate", action="store_true")
    options = parser.parse_args()

    import torch
    from diffusers import DiffusionPipeline

    torch.set_num_threads(options.threads)
    work = json.loads(options.work.read_text())
    pipeline = DiffusionPipeline.from_pretrained(work["model"], dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    if options.accelerate:
        from accelerate import PartialState

        state = PartialState(cpu=True)
        assert state.num_processes > 1, "start it with torchrun"
        with state.split_between_processes(work["requests"]) as share:
            draw(pipeline, share, work["params"], options)
    else:
        draw(pipeline, work["requests"], work["params"], options)


def draw(pipeline: object, requests: list, params: dict, options: argparse.Namespace) -> None:
    import torch
    from PIL import Image

    rank = os.environ.get("RANK", "0")
    begin_s = time.time()
    for start in range(0, len(requests), options.batch):
        batch = requests[start : start + options.batch]
        pictures = pipeline(
            prompt=[request["prompt"] for request in batch],
            generator=[torch.Generator("cpu").manual_seed(request["seed"]) for request in batch],
            output_type="np",
            **{**params, "negative_prompt": [params["negative_prompt"]] * len(batch)},
        ).frames[:, 0]
        for request, picture in zip(batch, pictures, strict=True):
            image = Image.fromarray((picture * 255).round().astype("uint8"))
            image.save(options.output / f"{request['name']}.png")
    times = {"begin_s": begin_s, "end_s": time.time()}
    (options.output / f"times-{rank}.json").write_text(json.dumps(times))


if __name__ == "__main__":
    main()
