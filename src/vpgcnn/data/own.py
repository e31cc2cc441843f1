"""A user's own images: a folder for each class, or arrays in an .npz file."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

from vpgcnn.data.base import Dataset, Split, held_out_of_each
from vpgcnn.data.config import DataConfig
from vpgcnn.errors import UserError

__all__ = [
    "class_folders",
    "decode_image",
    "image_files",
    "load_arrays",
    "load_folder",
    "part_folders",
    "parts_in",
    "read_image",
]

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff"}
HIDDEN = (".ipynb_checkpoints", "__MACOSX")
"""Folders that programs leave beside those of the classes."""
BROKEN = (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, OverflowError, struct.error)
"""What decoders raise on damaged files."""
LARGEST = 64_000_000
"""Pixels of the largest image that is decoded."""


def read_image(path: Path, size: int | None = None, channels: int | None = None, share: float = 1.0) -> Tensor:
    """An image file as bytes `(C, H, W)`; with a size, its centre square, resized. Damaged ones are named.

    channels: 1 or 3 to convert to; None keeps grey images grey and makes all others RGB. share: of the largest
    centre square, along a side.
    """
    return decode_image(path, str(path), size, channels, share)


def decode_image(
    source: Path | BinaryIO,
    name: str,
    size: int | None = None,
    channels: int | None = None,
    share: float = 1.0,
    *,
    formats: tuple[str, ...] | None = None,
    largest: int = LARGEST,
    ground: str = "black",
) -> Tensor:
    """The same of a file or stream that is called `name`. formats: the only ones that are tried, by Pillow's names.

    largest: how many pixels it may have; that is looked up before any is decoded. ground: what is behind transparency.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(source, formats=formats) as opened:
            if opened.width * opened.height > largest:
                raise UserError(f"{name} is too large: {opened.width}×{opened.height} pixels")
            image = _upright(opened)
            if image.mode in ("RGBA", "LA", "PA", "P"):
                image = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", image.size, ground), image)
            if image.mode.startswith("I;16"):  # 16 bits, which convert() would cut off instead of scaling
                image = Image.fromarray((np.asarray(image, np.uint16) // 257).astype(np.uint8))
            elif image.mode in ("I", "F"):
                raise UserError(f"{name} has 32-bit pixels ({image.mode}): save it with 8 or 16 bits")
            grey = channels == 1 or (channels is None and image.mode in ("1", "L"))
            image = image.convert("L" if grey else "RGB")
            if size is not None:
                image = ImageOps.fit(_middle(image, share), (size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(image, np.uint8)
    except UserError:
        raise
    except UnidentifiedImageError as error:
        raise UserError(f"{name} is not an image that can be read") from error
    except (*BROKEN, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot read the image {name}: {reason}") from error
    return torch.from_numpy(pixels.copy()).view(*pixels.shape[:2], -1).permute(2, 0, 1).contiguous()


def _upright(image: Image.Image) -> Image.Image:
    """Turned and mirrored as a photograph's metadata say, which are read and not written again: they may be damaged."""
    from PIL import Image

    turned = Image.Transpose
    known = {
        2: turned.FLIP_LEFT_RIGHT, 3: turned.ROTATE_180, 4: turned.FLIP_TOP_BOTTOM, 5: turned.TRANSPOSE,
        6: turned.ROTATE_270, 7: turned.TRANSVERSE, 8: turned.ROTATE_90,
    }  # fmt: skip
    try:
        orientation = image.getexif().get(0x0112)
    except BROKEN:
        orientation = None
    return image.transpose(known[orientation]) if orientation in known else image


def _middle(image: Image.Image, share: float) -> Image.Image:
    if share == 1:
        return image
    side = share * min(image.size)
    left, upper = ((length - side) / 2 for length in image.size)
    return image.crop((round(left), round(upper), round(left + side), round(upper + side)))


def load_folder(config: DataConfig, folder: Path) -> Dataset:
    """folder/class/*.png, or folder/train/class/*.png with folder/test/… (and folder/validation/…) beside it."""
    if config.size is not None and config.size < 1:
        raise UserError(f"size must be at least 1 pixel, got {config.size}")
    parts = part_folders(folder)
    classes = class_folders(parts.get("train", folder))
    read: dict[str, Split] = {}
    size, channels = config.size, None
    for part, where in parts.items():
        paths = [(path, label) for label, name in enumerate(classes) for path in image_files(where / name)]
        if not paths:
            raise UserError(f"no image in {where}")
        strange = [
            path.name for path in sorted(where.iterdir()) if image_files(path) and path.name not in (*classes, *HIDDEN)
        ]
        if strange:
            raise UserError(f"{where / strange[0]} is a class that {parts.get('train', folder)} does not have")
        if size is None or channels is None:
            first = read_image(paths[0][0])
            size, channels = size or int(first.shape[-1]), channels or _channels([path for path, _ in paths[:50]])
        with ThreadPoolExecutor(8) as pool:
            images = list(pool.map(_reader(size, channels), [path for path, _ in paths]))
        read[part] = Split(torch.stack(images), torch.tensor([label for _, label in paths]))
    note = f"{sum(map(len, read.values()))} images of {len(classes)} classes at {size}×{size} from {folder}"
    notes = [note]
    if "" not in parts:
        names = ", ".join(where.name for where in parts.values())
        made = [part for part in ("validation", "test") if part not in parts]
        notes.append(f"parts: {names}" + (f"; {' and '.join(made)} are taken from train" if made else ""))
    empty = [path.name for path in sorted(parts.get("train", folder).iterdir()) if _empty(path)]
    if empty:
        notes.append(f"no image in {', '.join(empty)}: no class")
    return _parted(str(folder), classes, read, tuple(notes), config)


PARTS = {"train": ("train", "training"), "validation": ("validation", "valid", "val"), "test": ("test", "testing")}


def part_folders(folder: Path) -> dict[str, Path]:
    """The folders of the parts that a folder comes in to be trained on; {"": folder} where it has no part "train"."""
    found = parts_in(folder)
    return found if "train" in found else {"": folder}


def parts_in(folder: Path) -> dict[str, Path]:
    """The parts "train", "validation" and "test" that a folder holds, under whichever of their usual names."""
    try:
        inside = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_dir()}
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}") from error
    return {
        part: inside[name]
        for part, names in PARTS.items()
        for name in names
        if name in inside and not image_files(inside[name])
    }


def _empty(path: Path) -> bool:
    """Whether a folder could be a class, if it held an image."""
    visible = path.is_dir() and not path.name.startswith(".") and path.name not in HIDDEN
    return visible and not image_files(path) and not any(inner.is_dir() for inner in path.iterdir())


def _reader(size: int, channels: int) -> Callable[[Path], Tensor]:
    def read(path: Path) -> Tensor:
        return read_image(path, size, channels)

    return read


def _channels(paths: list[Path]) -> int:
    """1 where all of these images are grey, 3 otherwise."""
    return max(read_image(path).shape[0] for path in paths)


def class_folders(folder: Path) -> tuple[str, ...]:
    """The names of the folders that hold images, sorted: the classes."""
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name not in HIDDEN)
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}") from error
    names = [name for name in names if image_files(folder / name)]
    if len(names) < 2:
        loose = f", and {len(image_files(folder))} images in none" if image_files(folder) else ""
        raise UserError(
            f"{folder} needs a folder of images for each of at least 2 classes ({folder.name}/CLASS/*.jpg), "
            f"found {len(names)}{loose}"
        )
    return tuple(names)


def image_files(folder: Path) -> list[Path]:
    """The images that lie in a folder, sorted."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())


def load_arrays(config: DataConfig, path: Path) -> Dataset:
    """An .npz file with `images` (N×H×W, N×H×W×C or N×C×H×W) and `labels`, and `classes` if they have names.

    `test_images` and `test_labels`, `validation_images` and `validation_labels` may be beside them.
    """
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise UserError(f"{path} holds a single array, not `images` and `labels`")
        with archive:
            arrays = {name: archive[name] for name in archive.files}
    except UserError:
        raise
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"cannot read arrays from {path}: {error}") from error
    read: dict[str, Split] = {}
    for part, prefix in (("train", ""), ("validation", "validation_"), ("test", "test_")):
        images, labels = arrays.get(f"{prefix}images"), arrays.get(f"{prefix}labels")
        if images is None and part != "train":
            continue
        if images is None or labels is None:
            raise UserError(f"{path} holds {sorted(arrays) or 'nothing'}, not `{prefix}images` and `{prefix}labels`")
        read[part] = Split(_bytes(images, path), _numbers(labels, path))
    if "test" not in read:
        read = {"": read["train"], **{part: split for part, split in read.items() if part == "validation"}}
    highest = max(int(split.labels.max()) for split in read.values() if len(split))
    names = arrays.get("classes")
    if names is not None and names.ndim != 1:
        raise UserError(f"{path}: classes are a list of names, got shape {names.shape}")
    classes = tuple(map(str, range(highest + 1) if names is None else names.tolist()))
    return _parted(str(path), classes, read, (f"{sum(map(len, read.values()))} images from {path}",), config)


def _bytes(images: np.ndarray, path: Path) -> Tensor:
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or 0 in images.shape or images.shape[1] not in (1, 3):
        raise UserError(f"{path}: images are N×H×W, N×H×W×C or N×C×H×W with C of 1 or 3, got shape {images.shape}")
    if images.dtype != np.uint8:
        if not np.issubdtype(images.dtype, np.floating):
            raise UserError(f"{path}: images are bytes or numbers in [0, 1], got {images.dtype}")
        broken = ~np.isfinite(images).all(axis=(1, 2, 3))
        if broken.any():
            first, many = int(broken.argmax()), int(broken.sum())
            raise UserError(f"{path}: {many} of {len(images)} images have NaN or infinity, at first image {first}")
        if images.min() < 0 or images.max() > 1:
            raise UserError(f"{path}: images as numbers are in [0, 1], got {images.min():g} … {images.max():g}")
        images = np.rint(images * 255).astype(np.uint8)
    return torch.from_numpy(np.ascontiguousarray(images))


def _numbers(labels: np.ndarray, path: Path) -> Tensor:
    if not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1 or (labels.size and labels.min() < 0):
        raise UserError(f"{path}: labels are whole numbers ≥ 0, one an image, got {labels.dtype} {labels.shape}")
    return torch.from_numpy(labels.astype(np.int64))


def _parted(
    name: str, classes: tuple[str, ...], read: dict[str, Split], notes: tuple[str, ...], config: DataConfig
) -> Dataset:
    """Split what did not come split, by seed, in each class alike."""
    train = read.get("train", read.get(""))
    assert train is not None
    test, validation = read.get("test"), read.get("validation")
    if test is None:
        stay, out = held_out_of_each(train.labels, config.test, config.seed)
        train, test = train[stay], train[out]
    if validation is None:
        stay, out = held_out_of_each(train.labels, config.validation, config.seed + 1)
        train, validation = train[stay], train[out]
    return Dataset(name, classes, train, validation, test, notes)
