"""Image files as bytes: any format that Pillow reads, upright, at a reduced size if they are huge.

This module does not import torch, so that a process that only decodes images starts at once.
"""

from __future__ import annotations

import math
import struct
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from vpgcnn.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["DECODING_ERRORS", "HEIC", "HEIC_ADVICE", "decode_pixels", "suffixes"]

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff"}
HEIC = {".heic", ".heif"}
"""Photographs of some telephones, which Pillow reads with the help of the package pillow-heif."""
HEIC_ADVICE = "pip install 'vpgcnn[heic]', or convert {} to .jpg"
"""What to do about HEIC files without that package."""
DECODING_ERRORS = (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, OverflowError, struct.error)
"""The exceptions that decoders raise on damaged files."""
MAX_PIXELS = 64_000_000
"""The number of pixels from which an image is decoded at a reduced size, or refused."""
MOST_PIXELS = 500_000_000
"""The number of pixels that are decoded at most: 1.5 GB in colour. JPEG files count an eighth of each side."""
LARGE = threading.Lock()
"""Large images are decoded one at a time, because each may need a gigabyte."""


def suffixes() -> set[str]:
    """The suffixes of image files that can be read, in lower case; HEIC is among them if pillow-heif is installed."""
    return SUFFIXES | HEIC if _reads_heic() else SUFFIXES


@cache
def _reads_heic() -> bool:
    """Make Pillow read HEIC files, if pillow-heif is installed."""
    try:
        import pillow_heif
    except ImportError:
        return False
    pillow_heif.register_heif_opener()
    return True


def decode_pixels(
    source: Path | BinaryIO,
    name: str,
    size: int | None = None,
    channels: int | None = None,
    share: float = 1.0,
    *,
    formats: tuple[str, ...] | None = None,
    max_pixels: int | None = MAX_PIXELS,
    quick: bool = False,
) -> np.ndarray:
    """Decode an image from a file or a stream.

    Args:
        source: A path or an open binary stream.
        name: What error messages call the image.
        size: If given, crop the image to its centre square and resize that to `size` × `size` pixels.
        channels: 1 or 3. None keeps grey images grey and converts all others to RGB.
        share: With `size`: crop to this share of the shorter side, in (0, 1].
        formats: Accept only these formats, by Pillow's names; None accepts all.
        max_pixels: Refuse larger images before they are decoded. None, for files that the user trusts: decode them at a
            reduced size.
        quick: With `size`: decode JPEG files at about twice that size, which is several times faster.

    Returns:
        Bytes `(C, H, W)`, upright according to the EXIF orientation, black where the image is transparent.

    Raises:
        UserError: If the image cannot be read, is damaged, too large or has 32-bit pixels.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if isinstance(source, Path) and source.suffix.lower() in HEIC and not _reads_heic():
        raise UserError(f"{name} is a HEIC file, which cannot be read: {HEIC_ADVICE.format('it')}")
    try:
        with _opened(source) if max_pixels is None else Image.open(source, formats=formats) as opened:
            if max_pixels is not None and opened.width * opened.height > max_pixels:
                raise _too_large(name, opened.size, max_pixels)
            turn = _orientation(opened)
            if quick and size is not None:
                side = math.ceil(2 * size / share)
                opened.draft(None, (side, side))  # at least this large; for JPEG files only
            large = opened.width * opened.height > MAX_PIXELS
            image = _reduced(opened, name) if large else opened
            image = image if turn is None else image.transpose(turn)
            if image.mode in ("RGBA", "LA", "PA", "P"):
                image = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", image.size, "black"), image)
            if image.mode.startswith("I;16"):
                image = _eight_bits(image)
            elif image.mode in ("I", "F"):
                raise UserError(f"{name} has 32-bit pixels ({image.mode}): save it with 8 or 16 bits")
            grey = channels == 1 or (channels is None and image.mode in ("1", "L"))
            image = image.convert("L" if grey else "RGB")
            if size is not None:
                image = ImageOps.fit(_crop_centre(image, share), (size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(image, np.uint8)
    except UserError:
        raise
    except UnidentifiedImageError as error:
        raise UserError(f"{name} is not an image that can be read") from error
    except (*DECODING_ERRORS, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot read the image {name}: {reason}") from error
    return pixels.reshape(*pixels.shape[:2], -1).transpose(2, 0, 1).copy()


def _opened(source: Path | BinaryIO) -> Image.Image:
    """Open an image of any size. `Image.open` refuses large ones before their size can be looked at."""
    from PIL import Image

    if isinstance(source, Path):
        Image.init()
        with source.open("rb") as stream:
            start = stream.read(16)
        for kind in ("JPEG", "PNG", "TIFF", "WEBP", "BMP", "HEIF"):
            factory, accept = Image.OPEN.get(kind, (None, None))
            if factory is not None and accept is not None and accept(start) is True:
                try:
                    opened: Image.Image = factory(str(source), str(source))  # type: ignore[arg-type]
                except DECODING_ERRORS:
                    break  # Image.open says what is wrong
                return opened
    return Image.open(source)


def _reduced(image: Image.Image, name: str) -> Image.Image:
    """Decode a large image at a whole fraction of its size."""
    whole = image.size
    image.draft(None, (whole[0] // 8, whole[1] // 8))  # JPEG files are decoded at an eighth of their size at once
    if image.width * image.height > MOST_PIXELS:
        raise _too_large(name, whole, MOST_PIXELS)
    factor = math.ceil(math.sqrt(image.width * image.height / MAX_PIXELS))
    with LARGE:
        image.load()
        if factor == 1:
            return image
        if image.mode in ("P", "PA", "LA"):
            image = image.convert("RGBA")
        elif image.mode == "1":
            image = image.convert("L")
        elif image.mode.startswith("I;16"):
            image = _eight_bits(image)
        return image.reduce(factor)


def _too_large(name: str, size: tuple[int, int], most: int) -> UserError:
    return UserError(f"{name} is too large: {size[0]}×{size[1]} pixels, at most {most:,} are allowed")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16 bits to 8; convert() would clip them."""
    from PIL import Image

    return Image.fromarray((np.asarray(image, np.uint16) // 257).astype(np.uint8))


def _orientation(image: Image.Image) -> Image.Transpose | None:
    """The move that makes an image upright, by its EXIF orientation.

    `ImageOps.exif_transpose` also writes the metadata back, which fails if they are damaged.
    """
    from PIL import Image

    method = Image.Transpose
    methods: dict[object, Image.Transpose] = {
        2: method.FLIP_LEFT_RIGHT, 3: method.ROTATE_180, 4: method.FLIP_TOP_BOTTOM, 5: method.TRANSPOSE,
        6: method.ROTATE_270, 7: method.TRANSVERSE, 8: method.ROTATE_90,
    }  # fmt: skip
    try:
        return methods.get(image.getexif().get(0x0112))
    except DECODING_ERRORS:
        return None


def _crop_centre(image: Image.Image, share: float) -> Image.Image:
    if share == 1:
        return image
    side = share * min(image.size)
    left, upper = ((length - side) / 2 for length in image.size)
    return image.crop((round(left), round(upper), round(left + side), round(upper + side)))
