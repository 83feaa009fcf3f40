"""Train the demo model from nothing: `scripts/train_demo_model --help`.

Parts, in order: the autoencoder, the latents of the training pictures, the text encoder, the
transformer with the text encoder, the export. Started again, it goes on from its checkpoints.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from demo_model import data, text, vae
from demo_model.denoiser import Artist, FlowLoss
from demo_model.export import export
from demo_model.loop import Recipe, Reporting, Trainer

NUM_PROCESSES = 2
SEED = 0


def main() -> None:
    """Parse the command line, train and export."""
    options = _parse()
    options.work.mkdir(parents=True, exist_ok=True)
    if not options.export_only:
        with tempfile.TemporaryDirectory() as meeting:
            mp.spawn(_rank_main, args=(options, f"file://{meeting}/store"), nprocs=NUM_PROCESSES)
    export(options.work, options.pictures, NUM_PROCESSES, options.out)
    print(f"wrote {options.out}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="train_demo_model", description="Train the demo model from nothing, on 2 cores."
    )
    parser.add_argument(
        "--work", type=Path, default=Path("outputs/demo_model"), help="checkpoints and latents"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("outputs/demo_model/weights"), help="the diffusers folder"
    )
    parser.add_argument("--vae-minutes", type=float, default=25.0)
    parser.add_argument("--text-minutes", type=float, default=1.5)
    parser.add_argument("--minutes", type=float, default=60.0, help="for the transformer")
    parser.add_argument("--pictures", type=int, default=40_000, help="size of the training set")
    parser.add_argument("--save-every-s", type=float, default=60.0)
    parser.add_argument("--log-every-s", type=float, default=10.0)
    parser.add_argument(
        "--export-only",
        action="store_true",
        help="write the folder from the checkpoints as they are",
    )
    return parser.parse_args()


def _rank_main(rank: int, options: argparse.Namespace, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=NUM_PROCESSES)
    torch.manual_seed(SEED)
    _train_vae(options)
    dist.barrier()
    data.write_latents(options.work, options.pictures, rank, NUM_PROCESSES)
    dist.barrier()
    latents, _, _ = data.read_latents(options.work, options.pictures, NUM_PROCESSES)
    artist = Artist(_train_reader(options))
    _train_artist(artist, FlowLoss(latents, data.scenes(options.pictures)), options)
    dist.barrier()
    dist.destroy_process_group()


def _reporting(options: argparse.Namespace) -> Reporting:
    return Reporting(
        folder=options.work, save_every_s=options.save_every_s, log_every_s=options.log_every_s
    )


def _train_vae(options: argparse.Namespace) -> None:
    recipe = Recipe(
        name="vae",
        minutes=options.vae_minutes,
        muon_rate=4e-3,
        adam_rate=2e-3,
        average_decay=0.995,
        bf16=True,
        seed=SEED,
    )
    Trainer(vae.flatten(vae.build()), vae.loss, recipe, _reporting(options)).run()


def _train_reader(options: argparse.Namespace) -> text.Reader:
    recipe = Recipe(
        name="text",
        minutes=options.text_minutes,
        muon_rate=3e-3,
        adam_rate=2e-3,
        average_decay=0.99,
        seed=SEED + 1,
    )
    reader = text.Reader()
    trainer = Trainer(reader, text.loss, recipe, _reporting(options))
    trainer.run()
    trainer.use_average()
    return reader


def _train_artist(artist: Artist, loss: FlowLoss, options: argparse.Namespace) -> None:
    recipe = Recipe(
        name="denoiser",
        minutes=options.minutes,
        muon_rate=1.5e-3,
        adam_rate=1e-3,
        average_decay=0.999,
        warmup_steps=100,
        bf16=True,
        seed=SEED + 2,
    )
    Trainer(artist, loss, recipe, _reporting(options)).run()


if __name__ == "__main__":
    main()
