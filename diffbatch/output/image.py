"""One frame to the bytes of a png, jpg or webp file, with its parameters inside.

png and webp are lossless; jpg is quality 95 without chroma subsampling.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from diffbatch.output.embed import Embedded, shortened

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_IMAGE_DESCRIPTION = 0x010E
_EXIF_IFD = 0x8769
_USER_COMMENT = 0x9286
_MAX_EXIF_BYTES = 65_000  # a JPEG segment ends at 64 KiB
_SHORT_TEXT = 1_200  # characters; fits a JPEG segment whatever they are


def encode_image(frame_HWC: npt.NDArray[np.uint8], suffix: str, meta: Embedded) -> bytes:
    """`frame_HWC`: uint8, RGB, channels last."""
    image = Image.fromarray(frame_HWC)
    buffer = io.BytesIO()
    if suffix == "png":
        image.save(buffer, "PNG", pnginfo=_png_text(meta))
    elif suffix == "jpg":
        image.save(buffer, "JPEG", quality=95, subsampling=0, exif=_exif(meta))
    else:
        image.save(buffer, "WEBP", lossless=True, exif=_exif(meta))
    return buffer.getvalue()


def _png_text(meta: Embedded) -> PngInfo:
    info = PngInfo()
    for key, value in (("parameters", meta.text), ("diffbatch", meta.json())):
        # tEXt is Latin-1 by definition and what old readers look for; the rest needs iTXt (UTF-8).
        if value.isascii():
            info.add_text(key, value)
        else:
            info.add_itxt(key, value)
    return info


def _exif(meta: Embedded) -> bytes:
    """UserComment holds the readable form, ImageDescription (ASCII by definition) the JSON.

    A prompt of tens of thousands of characters does not fit: it is cut here, never in the manifest.
    """
    data = _exif_of(meta)
    return data if len(data) <= _MAX_EXIF_BYTES else _exif_of(shortened(meta, _SHORT_TEXT))


def _exif_of(meta: Embedded) -> bytes:
    exif = Image.Exif()
    exif[_IMAGE_DESCRIPTION] = meta.json(ascii_only=True)
    # The readers of this field take UTF-16 as big endian whatever the byte order of the header.
    comment = b"UNICODE\0" + meta.text.encode("utf-16-be", "replace")
    exif.get_ifd(_EXIF_IFD)[_USER_COMMENT] = comment
    return exif.tobytes()
