"""Tiny configurations of diffusers transformer classes, and inputs for their forwards.

Written from the constructors and forward signatures of the classes. Values only have to be legal:
the tests compare a model with itself. Latents are a few pixels wide, lists have 2 blocks or more.
"""

from __future__ import annotations

from tests.parity.tiny_base import Tiny
from tests.parity.tiny_image import IMAGE
from tests.parity.tiny_other import OTHER
from tests.parity.tiny_video import VIDEO

TINY: dict[str, Tiny] = {**VIDEO, **IMAGE, **OTHER}

# Transformer classes of the installed diffusers without a tiny configuration, and why.
UNTRIED: dict[str, str] = {
    "DreamLiteTransformer2DModel": "its blocks live in a UNet; no pipeline runs it alone",
    "HunyuanDiT2DControlNetModel": "a control net, called beside the transformer",
    "HunyuanDiT2DMultiControlNetModel": "a control net, called beside the transformer",
    "Kandinsky6SRTransformer3DModel": "flex attention only, compiled",
    "Kandinsky6Transformer3DModel": "video and audio streams; no configuration written yet",
    "LongCatAudioDiTVae": "not a transformer",
    "SanaWMLTX2RefinerTransformer3DModel": "needs a cache object of its pipeline",
    "SanaWMTransformer3DModel": "needs camera inputs; no configuration written yet",
    "WanAnimate2Transformer3DModel": "needs a cache object of its pipeline",
}

# Classes that are refused, and a part of the reason that the message must give.
REFUSED: dict[str, str] = {
    "HunyuanDiT2DModel": "a block's output is kept and read again by a later block",
    "RFD4ProteinaTransformer": "a block's output is kept and read again by a later block",
    "FluxControlNetModel": "a block's output is kept and read again by the output",
    "AutoencoderKL": "loops over no list of blocks",
}
