"""Write the trained parts as an ordinary diffusers folder, in bf16 safetensors."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, WanPipeline

from demo_model import data, vae
from demo_model.denoiser import Artist
from demo_model.text import Reader


def export(work: Path, num_pictures: int, num_ranks: int, out: Path) -> None:
    """Read the averaged weights from the checkpoints in `work` and write the folder `out`."""
    _, mean, std = data.read_latents(work, num_pictures, num_ranks)
    artist = Artist(Reader())
    state = torch.load(work / "denoiser.ckpt", weights_only=True)
    with torch.no_grad():
        for parameter, average in zip(artist.parameters(), state["average"], strict=True):
            parameter.copy_(average)
    pipeline = WanPipeline(
        tokenizer=artist.reader.tokenizer,
        text_encoder=artist.reader.encoder,
        transformer=artist.transformer,
        vae=vae.write_back(vae.load_average(work), mean, std),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
    )
    pipeline.to(torch.bfloat16).save_pretrained(out)
    for path in out.rglob("*.safetensors"):
        path.chmod(0o644)  # written as 0600, unreadable for others once installed
