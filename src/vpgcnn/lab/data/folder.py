"""Images of the user: a folder with a subfolder for each class, or arrays in an .npz file."""

from __future__ import annotations

import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.lab.data.base import Dataset, Split, stratified_holdout_split
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.data.images import read_image
from vpgcnn.lab.pixels import HEIC, HEIC_ADVICE, suffixes

__all__ = [
    "class_names",
    "find_parts",
    "folders_in",
    "image_files",
    "load_arrays",
    "load_folder",
    "part_folders",
    "passed_over",
    "unreadable",
]

IGNORED = (".ipynb_checkpoints", "__MACOSX")
"""Folders that other programs create; they are not classes."""


def load_folder(config: DataConfig, folder: Path) -> Dataset:
    """Load a folder with a subfolder for each class: folder/CLASS/*.png, or folder/train/CLASS/*.png.

    folder/validation/ and folder/test/ are optional; missing parts are split off the training images, class by class.

    Args:
        config: `size` is the size of the images (default: that of the first image); `validation`, `test` and `seed`
            say how to split.
        folder: The folder.

    Raises:
        UserError: If there are fewer than two classes, images are damaged and `config.skip_damaged` is off, or the
            parts have different classes.
    """
    if config.size is not None and config.size < 1:
        raise UserError(f"size must be at least 1 pixel, got {config.size}")
    parts = part_folders(folder)
    classes = class_names(parts.get("train", folder))
    read: dict[str, Split] = {}
    size, channels = config.size, None
    damaged: dict[str, str] = {}
    total = 0
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
            few = [image for path, _ in paths[:50] if isinstance(image := _try_to_read(path), Tensor)]
            few = few or [next((im for path, _ in paths if isinstance(im := _try_to_read(path), Tensor)), EMPTY)]
            size, channels = size or int(few[0].shape[-1]), channels or max(image.shape[0] for image in few)
        _check_memory(folder, total + len(paths), channels, size)
        with ThreadPoolExecutor(8) as pool:
            read_one = partial(_try_to_read, size=size, channels=channels)
            images = list(pool.map(read_one, [path for path, _ in paths]))
        total += len(paths)
        damaged |= {
            str(path.relative_to(folder)): image
            for (path, _), image in zip(paths, images, strict=True)
            if isinstance(image, str)
        }
        good = [(im, label) for im, (_, label) in zip(images, paths, strict=True) if isinstance(im, Tensor)]
        lost = sorted({label for _, label in paths} - {label for _, label in good})
        if lost and config.skip_damaged:
            raise UserError(f"no image of the class {classes[lost[0]]} in {where} can be read")
        if good:
            read[part] = Split(torch.stack([im for im, _ in good]), torch.tensor([label for _, label in good]))
    if damaged and not config.skip_damaged:
        raise unreadable(folder, damaged, total)
    note = f"{sum(map(len, read.values()))} images of {len(classes)} classes at {size}×{size} from {folder}"
    notes = [note]
    if damaged:
        notes.append(f"left out {_count(len(damaged), 'image')} that cannot be read: {', '.join(damaged)}")
    heic = sum(len(_heic_files(where / name)) for where in parts.values() for name in classes)
    if heic:
        notes.append(f"{_count(heic, 'HEIC file')} passed over; to use them: {HEIC_ADVICE.format('them')}")
    if "" not in parts:
        names = ", ".join(where.name for where in parts.values())
        absent = [part for part in ("validation", "test") if part not in parts]
        notes.append(f"parts: {names}" + (f"; {' and '.join(absent)} split off train" if absent else ""))
    empty = [path.name for path in sorted(parts.get("train", folder).iterdir()) if _is_empty_class(path)]
    if empty:
        notes.append(f"empty folders ignored: {', '.join(empty)}")
    inner = passed_over(folder)
    if inner:
        notes.append(inner)
    return _split_missing_parts(str(folder), classes, read, tuple(notes), config)


def _check_memory(folder: Path, images: int, channels: int, size: int) -> None:
    """Refuse images that do not fit the machine, before they fill it."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # Windows does not say
        return
    needed = images * channels * size * size
    if needed > memory:
        raise UserError(
            f"{images:,} images of {folder} at {size}×{size} pixels need {needed / 2**30:,.0f} GB of memory, and this "
            f"machine has {memory / 2**30:,.0f}: choose a smaller --data.size"
        )


EMPTY = torch.zeros(1, 1, 1, dtype=torch.uint8)
"""Stands for the first image if none can be read."""
NAMED = 20
"""Damaged files that an error names, at most."""


def _try_to_read(path: Path, size: int | None = None, channels: int | None = None) -> Tensor | str:
    """The image in a file, or the reason why it cannot be read."""
    try:
        return read_image(path, size, channels)
    except UserError as error:
        return str(error)


def unreadable(folder: Path, damaged: dict[str, str], total: int) -> UserError:
    """The error that names all damaged images; the reason if there is one only."""
    if len(damaged) == 1:
        return UserError(f"{next(iter(damaged.values()))}; remove it, or leave it out with --skip-damaged")
    names = ", ".join(list(damaged)[:NAMED])
    more = f" and {len(damaged) - NAMED} more" if len(damaged) > NAMED else ""
    return UserError(
        f"{len(damaged)} of {total} images in {folder} cannot be read: {names}{more}; remove them, or leave them out "
        "with --skip-damaged"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


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
        outside = f", and {_count(loose, 'image')} outside of any class folder" if loose else ""
        heic = sum(len(_heic_files(inner)) for inner in (folder, *folder.iterdir()))
        if heic:
            outside += f", and {_count(heic, 'HEIC file')}, which cannot be read: {HEIC_ADVICE.format('them')}"
        raise UserError(
            f"{folder} needs a folder of images for each of at least 2 classes ({folder.resolve().name}/CLASS/*.jpg), "
            f"found {len(names)}{outside}{_deeper(folder)}"
        )
    return tuple(names)


def _deeper(folder: Path) -> str:
    """A hint at folders of classes further down: where they are, or that each class has folders of its own."""
    level = folders_in(folder)
    try:
        for depth in ("one folder", "two folders"):
            below = {path: [each for each in folders_in(path) if image_files(each)] for path in level}
            found = [path for path, classes in below.items() if classes]
            if len(found) == 1 and len(below[found[0]]) > 1:
                return f"; did you mean {found[0]}?"
            if found:
                example = image_files(below[found[0]][0])[0].relative_to(folder)
                return f"; its images are {depth} too deep, such as {example}"
            level = [each for path in level for each in folders_in(path)]
    except OSError:
        return ""
    return ""


def folders_in(folder: Path) -> list[Path]:
    """Return the folders directly in a folder, sorted, without those that other programs create."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in IGNORED)


def passed_over(folder: Path) -> str:
    """A sentence that names the folders with images inside class folders, which are not read; empty if there are none.

    Args:
        folder: A folder of classes, or of the parts train, validation and test.
    """
    classes = [path for where in part_folders(folder).values() for path in sorted(where.iterdir()) if image_files(path)]
    known = suffixes()
    inner = [
        path.relative_to(folder).as_posix()
        for each in classes
        for path in sorted(each.iterdir())
        if path.is_dir()
        and not path.name.startswith(".")
        and path.name not in IGNORED
        and any(file.suffix.lower() in known for file in path.rglob("*"))
    ]
    if not inner:
        return ""
    names = ", ".join(inner[:NAMED]) + (f" and {len(inner) - NAMED} more" if len(inner) > NAMED else "")
    return f"passed over {_count(len(inner), 'folder')} inside class folders, whose images do not count: {names}"


def _heic_files(folder: Path) -> list[Path]:
    """The HEIC files in a folder that cannot be read."""
    unread = HEIC - suffixes()
    return [path for path in folder.iterdir() if path.suffix.lower() in unread] if folder.is_dir() else []


def image_files(folder: Path) -> list[Path]:
    """Return the image files directly in a folder, sorted; empty if it is not a folder."""
    if not folder.is_dir():
        return []
    known = suffixes()
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in known and path.is_file())


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
        damaged = "pickle" in str(error)  # which numpy takes any other file for
        reason = "it is damaged, not an .npz file, or holds objects instead of numbers" if damaged else error
        raise UserError(f"cannot read arrays from {path}: {reason}") from error
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
