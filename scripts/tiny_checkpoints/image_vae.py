"""The image autoencoder that SD3 and FLUX share: factor 8, 16 latent channels."""

from __future__ import annotations

from diffusers import AutoencoderKL

from tiny_checkpoints.weights import randomize

LATENT_CHANNELS = 16


def image_vae(*, scaling_factor: float, shift_factor: float) -> AutoencoderKL:
    """Four levels, no quantisation convolutions."""
    model = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 16, 32, 32),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=4,
        sample_size=128,
        scaling_factor=scaling_factor,
        shift_factor=shift_factor,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )
    randomize(model, "vae")
    return model
