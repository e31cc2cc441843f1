"""CIFAR-10 and CIFAR-100 from their Python batches, read with an unpickler that cannot run code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vpgcnn.errors import UserError
from vpgcnn.lab.data.base import Dataset, Split, holdout_split
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.data.files import Archive, PublishedFile

__all__ = ["ARCHIVE10", "ARCHIVE100", "FILES10", "FILES100", "load_cifar10", "load_cifar100", "read_batch"]

_HOME = "https://www.cs.toronto.edu/~kriz/"
ARCHIVE10 = Archive("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", (f"{_HOME}cifar-10-python.tar.gz",))
ARCHIVE100 = Archive(
    "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", (f"{_HOME}cifar-100-python.tar.gz",)
)
FILES10 = [
    PublishedFile(f"cifar-10-batches-py/{name}", checksum)
    for name, checksum in (
        ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
        ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
        ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
        ("data_batch_4", "634d18415352ddfa80567beed471001a"),
        ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
        ("test_batch", "40351d587109b95175f43aff81a1287e"),
        ("batches.meta", "5ff9c542aee3614f3951f8cda6e48888"),
    )
]
FILES100 = [
    PublishedFile(f"cifar-100-python/{name}", checksum)
    for name, checksum in (
        ("train", "16019d7e3df5f24257cddd939b257f8d"),
        ("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
        ("meta", "7973b15100ade9c7d40fb424638fde48"),
    )
]


class _PlainData(pickle.Unpickler):
    """Creates plain Python values and NumPy arrays only, so that a batch from an untrusted source cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): _encode,
        }
        key = (module.rsplit(".", 1)[-1], name)
        if key not in known:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed")
        return known[key]


def _encode(text: str, encoding: str) -> bytes:
    return text.encode(encoding)


def read_batch(path: Path) -> dict[str, Any]:
    """Read the dictionary in a batch file.

    Args:
        path: A file such as `data_batch_1` or `batches.meta`.

    Returns:
        The content of the file, with its keys as text.

    Raises:
        UserError: If the file is missing, damaged, or holds anything but plain data and arrays.
    """
    try:
        with path.open("rb") as stream:
            content = _PlainData(stream, encoding="bytes").load()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:
        raise UserError(f"{path} is damaged or is not a CIFAR batch: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a CIFAR batch: it holds a {type(content).__name__}")
    return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def _read_split(paths: list[Path], label: str) -> Split:
    """Join these batches; `label` is the key of their labels."""
    images, labels = [], []
    for path in paths:
        batch = read_batch(path)
        data, numbers = batch.get("data"), batch.get(label)
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
            raise UserError(f"{path} is not a CIFAR batch: 'data' must hold rows of 3072 bytes")
        if not isinstance(numbers, list) or len(numbers) != len(data):
            raise UserError(f"{path} is not a CIFAR batch: {label!r} must hold {len(data)} labels")
        images.append(torch.from_numpy(data.reshape(-1, 3, 32, 32).copy()))
        labels.append(torch.tensor(numbers, dtype=torch.long))
    return Split(torch.cat(images), torch.cat(labels))


def _read_class_names(path: Path, key: str) -> tuple[str, ...]:
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in read_batch(path).get(key, ()))


def load_cifar10(config: DataConfig, root: Path) -> Dataset:
    """Load CIFAR-10 from those of its five training batches that exist.

    Args:
        config: `validation` is the share of the training images to hold out, shuffled by `seed`.
        root: The data directory.

    Raises:
        UserError: If there is no training batch or no test batch, or if one is damaged.
    """
    folder = root / "cifar-10-batches-py"
    found = [folder / f"data_batch_{number}" for number in range(1, 6)]
    found = [path for path in found if path.is_file()]
    if not found or not (folder / "test_batch").is_file():
        raise UserError(
            f"{folder} needs test_batch and at least one of data_batch_1 … 5: "
            "`vpgcnn datasets fetch cifar10` downloads them"
        )
    train, test = _read_split(found, "labels"), _read_split([folder / "test_batch"], "labels")
    meta = folder / "batches.meta"
    classes = _read_class_names(meta, "label_names") if meta.is_file() else tuple(map(str, range(10)))
    note = f"{len(train)} training images in {len(found)} of 5 batches, {len(test)} test images, from {folder}"
    return _dataset("cifar10", classes, train, test, note, config)


def load_cifar100(config: DataConfig, root: Path) -> Dataset:
    """Load CIFAR-100 with its fine labels.

    Args:
        config: `validation` is the share of the training images to hold out, shuffled by `seed`.
        root: The data directory.

    Raises:
        UserError: If a file is missing or damaged.
    """
    folder = root / "cifar-100-python"
    missing = [name for name in ("train", "test") if not (folder / name).is_file()]
    if missing:
        raise UserError(f"there is no {folder / missing[0]}: `vpgcnn datasets fetch cifar100` downloads it")
    train, test = (_read_split([folder / name], "fine_labels") for name in ("train", "test"))
    meta = folder / "meta"
    classes = _read_class_names(meta, "fine_label_names") if meta.is_file() else tuple(map(str, range(100)))
    note = f"{len(train)} training and {len(test)} test images from {folder}"
    return _dataset("cifar100", classes, train, test, note, config)


def _dataset(name: str, classes: tuple[str, ...], train: Split, test: Split, note: str, config: DataConfig) -> Dataset:
    stay, out = holdout_split(len(train), config.validation, config.seed)
    return Dataset(name, classes, train[stay], train[out], test, (note,))
