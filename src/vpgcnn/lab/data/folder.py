"""Images of the user: a folder with a subfolder for each class, or arrays in an .npz file."""

from __future__ import annotations

import struct
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

from vpgcnn.errors import UserError
from vpgcnn.lab.data.base import Dataset, Split, stratified_holdout_split
from vpgcnn.lab.data.config import DataConfig

__all__ = [
    "class_names",
    "decode_image",
    "find_parts",
    "image_files",
    "load_arrays",
    "load_folder",
    "part_folders",
    "read_image",
]

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff"}
IGNORED = (".ipynb_checkpoints", "__MACOSX")
"""Folders that other programs create; they are not classes."""
DECODING_ERRORS = (OSError, SyntaxError, ValueError, TypeError, LookupError, EOFError, OverflowError, struct.error)
"""The exceptions that decoders raise on damaged files."""
MAX_PIXELS = 64_000_000
"""The number of pixels of the largest image that is decoded."""


def read_image(path: Path, size: int | None = None, channels: int | None = None, share: float = 1.0) -> Tensor:
    """Read an image file.

    Args:
        path: A file in any format that Pillow reads, with 8 or 16 bits per channel.
        size: If given, crop the image to its centre square and resize that to `size` × `size` pixels.
        channels: 1 or 3. None keeps grey images grey and converts all others to RGB.
        share: With `size`: crop to this share of the shorter side, in (0, 1].

    Returns:
        Bytes `(C, H, W)`, upright according to the EXIF orientation.

    Raises:
        UserError: If the file is missing, damaged, too large or has 32-bit pixels.
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
    max_pixels: int = MAX_PIXELS,
    background: str = "black",
) -> Tensor:
    """Decode an image from a file or a stream.

    Args:
        source: A path or an open binary stream.
        name: What error messages call the image.
        size: If given, crop the image to its centre square and resize that to `size` × `size` pixels.
        channels: 1 or 3. None keeps grey images grey and converts all others to RGB.
        share: With `size`: crop to this share of the shorter side, in (0, 1].
        formats: Accept only these formats, by Pillow's names; None accepts all.
        max_pixels: Refuse larger images before they are decoded.
        background: The colour behind transparent pixels.

    Returns:
        Bytes `(C, H, W)`, upright according to the EXIF orientation.

    Raises:
        UserError: If the image cannot be read, is damaged, too large or has 32-bit pixels.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(source, formats=formats) as opened:
            if opened.width * opened.height > max_pixels:
                raise UserError(
                    f"{name} is too large: {opened.width}×{opened.height} pixels, at most {max_pixels:,} are allowed"
                )
            image = _apply_orientation(opened)
            if image.mode in ("RGBA", "LA", "PA", "P"):
                image = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", image.size, background), image)
            if image.mode.startswith("I;16"):  # convert() would clip 16 bits instead of scaling them
                image = Image.fromarray((np.asarray(image, np.uint16) // 257).astype(np.uint8))
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
    return torch.from_numpy(pixels.copy()).view(*pixels.shape[:2], -1).permute(2, 0, 1).contiguous()


def _apply_orientation(image: Image.Image) -> Image.Image:
    """Rotate and mirror an image as its EXIF orientation says.

    `ImageOps.exif_transpose` also writes the metadata back, which fails if they are damaged.
    """
    from PIL import Image

    method = Image.Transpose
    methods = {
        2: method.FLIP_LEFT_RIGHT, 3: method.ROTATE_180, 4: method.FLIP_TOP_BOTTOM, 5: method.TRANSPOSE,
        6: method.ROTATE_270, 7: method.TRANSVERSE, 8: method.ROTATE_90,
    }  # fmt: skip
    try:
        orientation = image.getexif().get(0x0112)
    except DECODING_ERRORS:
        orientation = None
    return image.transpose(methods[orientation]) if orientation in methods else image


def _crop_centre(image: Image.Image, share: float) -> Image.Image:
    if share == 1:
        return image
    side = share * min(image.size)
    left, upper = ((length - side) / 2 for length in image.size)
    return image.crop((round(left), round(upper), round(left + side), round(upper + side)))


def load_folder(config: DataConfig, folder: Path) -> Dataset:
    """Load a folder with a subfolder for each class: folder/CLASS/*.png, or folder/train/CLASS/*.png.

    folder/validation/ and folder/test/ are optional; missing parts are split off the training images, class by class.

    Args:
        config: `size` is the size of the images (default: that of the first image); `validation`, `test` and `seed`
            say how to split.
        folder: The folder.

    Raises:
        UserError: If there are fewer than two classes, an image is damaged, or the parts have different classes.
    """
    if config.size is not None and config.size < 1:
        raise UserError(f"size must be at least 1 pixel, got {config.size}")
    parts = part_folders(folder)
    classes = class_names(parts.get("train", folder))
    read: dict[str, Split] = {}
    size, channels = config.size, None
    for part, where in parts.items():
        paths = [(path, label) for label, name in enumerate(classes) for path in image_files(where / name)]
        if not paths:
            raise UserError(f"there is no image in {where}: add one, or remove the folder")
        unknown = [
            path.name for path in sorted(where.iterdir()) if image_files(path) and path.name not in (*classes, *IGNORED)
        ]
        if unknown:
            raise UserError(f"{where / unknown[0]} is a class that {parts.get('train', folder)} does not have")
        if size is None or channels is None:
            first = read_image(paths[0][0])
            size, channels = size or int(first.shape[-1]), channels or _count_channels([path for path, _ in paths[:50]])
        with ThreadPoolExecutor(8) as pool:
            read_one = partial(read_image, size=size, channels=channels)
            images = list(pool.map(read_one, [path for path, _ in paths]))
        read[part] = Split(torch.stack(images), torch.tensor([label for _, label in paths]))
    note = f"{sum(map(len, read.values()))} images of {len(classes)} classes at {size}×{size} from {folder}"
    notes = [note]
    if "" not in parts:
        names = ", ".join(where.name for where in parts.values())
        absent = [part for part in ("validation", "test") if part not in parts]
        notes.append(f"parts: {names}" + (f"; {' and '.join(absent)} split off train" if absent else ""))
    empty = [path.name for path in sorted(parts.get("train", folder).iterdir()) if _is_empty_class(path)]
    if empty:
        notes.append(f"empty folders ignored: {', '.join(empty)}")
    return _split_missing_parts(str(folder), classes, read, tuple(notes), config)


PARTS = {"train": ("train", "training"), "validation": ("validation", "valid", "val"), "test": ("test", "testing")}
"""The names that the folder of each part may have, in lower case."""


def part_folders(folder: Path) -> dict[str, Path]:
    """Find the folders of training, validation and test images.

    Returns:
        The folders by part, or `{"": folder}` if there is no part "train", so that the whole folder is to be split.

    Raises:
        UserError: If the folder cannot be read.
    """
    found = find_parts(folder)
    return found if "train" in found else {"": folder}


def find_parts(folder: Path) -> dict[str, Path]:
    """Find the parts "train", "validation" and "test" in a folder, under any of their usual names.

    Returns:
        The folders that exist, by part. A folder that holds images directly is a class, not a part.

    Raises:
        UserError: If the folder cannot be read.
    """
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


def _is_empty_class(path: Path) -> bool:
    """Return whether a folder would be a class if it held an image."""
    visible = path.is_dir() and not path.name.startswith(".") and path.name not in IGNORED
    return visible and not image_files(path) and not any(inner.is_dir() for inner in path.iterdir())


def _count_channels(paths: list[Path]) -> int:
    """Return 1 if all of these images are grey, otherwise 3."""
    return max(read_image(path).shape[0] for path in paths)


def class_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the subfolders that hold images, sorted.

    Raises:
        UserError: If there are fewer than two, or if the folder cannot be read.
    """
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name not in IGNORED)
    except OSError as error:
        raise UserError(f"cannot read {folder}: {error.strerror}") from error
    names = [name for name in names if image_files(folder / name)]
    if len(names) < 2:
        loose = len(image_files(folder))
        outside = f", and {loose} image{'s' if loose > 1 else ''} outside of any class folder" if loose else ""
        raise UserError(
            f"{folder} needs a folder of images for each of at least 2 classes ({folder.name}/CLASS/*.jpg), "
            f"found {len(names)}{outside}"
        )
    return tuple(names)


def image_files(folder: Path) -> list[Path]:
    """Return the image files directly in a folder, sorted; empty if it is not a folder."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())


def load_arrays(config: DataConfig, path: Path) -> Dataset:
    """Load an .npz file with the arrays `images` and `labels`.

    `images` has the shape N×H×W, N×H×W×C or N×C×H×W, with bytes or floats in [0, 1]. The arrays `classes`,
    `validation_images`, `validation_labels`, `test_images` and `test_labels` are optional; missing parts are split
    off the training images, class by class.

    Args:
        config: `validation`, `test` and `seed` say how to split.
        path: The file.

    Raises:
        UserError: If the file cannot be read, or if an array is missing or has the wrong shape, type or range.
    """
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise UserError(f"{path} holds a single array instead of `images` and `labels`: write it with numpy.savez")
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
            found = ", ".join(sorted(arrays)) or "nothing"
            raise UserError(f"{path} must hold `{prefix}images` and `{prefix}labels`, but holds {found}")
        read[part] = Split(_images_to_bytes(images, path), _check_labels(labels, path))
    if "test" not in read:
        read = {"": read["train"], **{part: split for part, split in read.items() if part == "validation"}}
    highest = max(int(split.labels.max()) for split in read.values() if len(split))
    names = arrays.get("classes")
    if names is not None and names.ndim != 1:
        raise UserError(f"{path}: `classes` must be a list of names, got shape {names.shape}")
    classes = tuple(map(str, range(highest + 1) if names is None else names.tolist()))
    return _split_missing_parts(
        str(path), classes, read, (f"{sum(map(len, read.values()))} images from {path}",), config
    )


def _images_to_bytes(images: np.ndarray, path: Path) -> Tensor:
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.ndim != 4 or 0 in images.shape or images.shape[1] not in (1, 3):
        raise UserError(
            f"{path}: images must be N×H×W, N×H×W×C or N×C×H×W, where C is 1 or 3, got shape {images.shape}"
        )
    if images.dtype != np.uint8:
        if not np.issubdtype(images.dtype, np.floating):
            raise UserError(f"{path}: images must be bytes or floats in [0, 1], got {images.dtype}")
        broken = ~np.isfinite(images).all(axis=(1, 2, 3))
        if broken.any():
            first, many = int(broken.argmax()), int(broken.sum())
            raise UserError(
                f"{path}: {many} of {len(images)} images contain NaN or infinity, the first is image {first}"
            )
        if images.min() < 0 or images.max() > 1:
            raise UserError(f"{path}: float images must be in [0, 1], got {images.min():g} … {images.max():g}")
        images = np.rint(images * 255).astype(np.uint8)
    return torch.from_numpy(np.ascontiguousarray(images))


def _check_labels(labels: np.ndarray, path: Path) -> Tensor:
    if not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1 or (labels.size and labels.min() < 0):
        raise UserError(f"{path}: labels must be integers ≥ 0, one per image, got {labels.dtype} {labels.shape}")
    return torch.from_numpy(labels.astype(np.int64))


def _split_missing_parts(
    name: str, classes: tuple[str, ...], read: dict[str, Split], notes: tuple[str, ...], config: DataConfig
) -> Dataset:
    """Split the test and validation images off the training images, class by class, unless they are given."""
    train = read.get("train", read.get(""))
    assert train is not None
    test, validation = read.get("test"), read.get("validation")
    if test is None:
        stay, out = stratified_holdout_split(train.labels, config.test, config.seed)
        train, test = train[stay], train[out]
    if validation is None:
        stay, out = stratified_holdout_split(train.labels, config.validation, config.seed + 1)
        train, validation = train[stay], train[out]
    return Dataset(name, classes, train, validation, test, notes)
