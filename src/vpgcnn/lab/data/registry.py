"""The datasets by name, and `load`, which finds them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vpgcnn.errors import UserError
from vpgcnn.lab.data import (
    cifar,
    colormnist,
    flowers,
    folder,
    gtsrb,
    mnist,
    protocols,
    ranges,
    sign_colors,
    turn_hue,
)
from vpgcnn.lab.data.base import Dataset
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.data.files import VARIABLE, Archive, ManualDownload, PublishedFile, data_directory

__all__ = ["DATASETS", "DatasetEntry", "get_entry", "load", "register"]


@dataclass(frozen=True)
class DatasetEntry:
    """How to load a dataset, and which files it needs.

    Args:
        load: A function from the settings and the data directory to the dataset. The same settings must always give
            the same images.
        files: The files to download and verify; empty if the dataset is generated.
        archive: The archive that holds the files, if there is one.
        about: One line for `vpgcnn datasets`.
        download: For a dataset that `vpgcnn datasets fetch` cannot download: what the user has to do.
    """

    load: Callable[[DataConfig, Path], Dataset]
    files: Sequence[PublishedFile] = ()
    archive: Archive | None = None
    about: str = ""
    download: ManualDownload | None = None


DATASETS: dict[str, DatasetEntry] = {
    "mnist": DatasetEntry(mnist.load_mnist, mnist.FILES, None, "70,000 handwritten digits"),
    "mnist67-180": DatasetEntry(
        mnist.load_mnist67, mnist.FILES, None, "6s and 7s, upright and rotated by 180°: a 6 becomes a 9, a 7 stays a 7"
    ),
    "mnist-ranges": DatasetEntry(
        ranges.load_ranges, mnist.FILES, None, "4s and 7s in three sizes, which determine how far each may rotate"
    ),
    "mnist-ranges-eighth": DatasetEntry(
        ranges.load_eighth, mnist.FILES, None, "the same, with ranges of 1/8, 1/2 and 1 of the circle"
    ),
    "mnist-multiple": DatasetEntry(
        protocols.load_multiple, mnist.FILES, None, "all digits, each digit c rotated by up to 18c degrees"
    ),
    "mnist-symmetry-breaking": DatasetEntry(
        protocols.load_symmetry_breaking,
        mnist.FILES,
        None,
        "all digits, half of the 6s and 9s upside down as 9s and 6s",
    ),
    "mnist-turn-hue": DatasetEntry(
        turn_hue.load_turn_hue, mnist.FILES, None, "coloured digits, some of which may rotate, change hue, or both"
    ),
    "colormnist-lt": DatasetEntry(
        colormnist.load_long_tailed, mnist.FILES, None, "red, green and blue digits, 30 classes of 1 to 150 images"
    ),
    "colormnist": DatasetEntry(
        colormnist.load_balanced, mnist.FILES, None, "red, green and blue digits, 30 classes of the same size"
    ),
    "flowers102": DatasetEntry(
        flowers.load_flowers, flowers.FILES, flowers.ARCHIVE, "8,189 photographs of 102 flowers, at any resolution"
    ),
    "cifar10": DatasetEntry(
        cifar.load_cifar10, cifar.FILES10, cifar.ARCHIVE10, "60,000 small photographs in 10 classes"
    ),
    "cifar100": DatasetEntry(
        cifar.load_cifar100, cifar.FILES100, cifar.ARCHIVE100, "60,000 small photographs in 100 classes"
    ),
    "gtsrb": DatasetEntry(
        gtsrb.load_gtsrb,
        about="photographs of 43 traffic signs, some of which may be rotated, mirrored, or both",
        download=gtsrb.DOWNLOAD,
    ),
    "gtsrb-turn": DatasetEntry(
        gtsrb.load_gtsrb_turn,
        about="the same, with the true range of rotations of each image",
        download=gtsrb.DOWNLOAD,
    ),
    "gtsrb-mirror": DatasetEntry(
        gtsrb.load_gtsrb_mirror,
        about="the same, with whether each image may be mirrored",
        download=gtsrb.DOWNLOAD,
    ),
    "gtsrb-colors": DatasetEntry(
        sign_colors.load_sign_colors,
        about="four of the signs, some of which may change saturation, luminance, or both",
        download=gtsrb.DOWNLOAD,
    ),
}
"""The registered datasets. Add one with `register`."""


def register(name: str, entry: DatasetEntry) -> None:
    """Add a dataset, so that `load` and all commands find it by its name.

        >>> register("blobs", DatasetEntry(load_blobs, about="bright spots on black"))  # doctest: +SKIP

    A program calls `register` before `load`; on the command line, `vpgcnn --use FILE.py …` runs a file that does.

    Args:
        name: The value of `DataConfig.name`. A registered name takes precedence over a folder of the same name.
        entry: How to load the dataset. An entry with the same function may be registered again; it then replaces the
            first one.

    Raises:
        UserError: If the name is taken by another function.
    """
    taken = DATASETS.get(name)
    if taken is not None and taken.load is not entry.load:
        function = f"{taken.load.__module__}.{getattr(taken.load, '__qualname__', taken.load)}"
        raise UserError(f"the dataset name {name!r} is taken by {function}: choose another name")
    DATASETS[name] = entry


def get_entry(name: str) -> DatasetEntry:
    """Return the registered dataset of this name.

    Raises:
        UserError: If there is no such dataset.
    """
    if name not in DATASETS:
        raise UserError(f"unknown dataset {name!r}: choose from {', '.join(DATASETS)}")
    return DATASETS[name]


def load(config: DataConfig, directory: Path | None = None) -> Dataset:
    """Load a dataset into memory.

    Args:
        config: `name` is a registered name, or the path of an image folder or .npz file.
        directory: The data directory; None stands for VPGCNN_DATA or the user's cache, see `data_directory`.

    Returns:
        The dataset, with at most `config.limit` training images and with their mean and standard deviation.

    Raises:
        UserError: If the name is unknown, or if files are missing or damaged.
    """
    entry = DATASETS.get(config.name)
    if entry is not None:
        root = data_directory(directory)
        if (directory is not None or os.environ.get(VARIABLE)) and not root.is_dir():
            origin = "" if directory is not None else f" (from {VARIABLE})"
            raise UserError(
                f"there is no data directory {directory or root}{origin}: choose another one, or create it with "
                f"`vpgcnn datasets fetch {config.name} --data-dir {directory or root}`"
            )
        dataset = entry.load(config, root)
    else:
        path = _to_path(config.name)
        if path.is_dir():
            dataset = folder.load_folder(config, path)
        elif path.suffix == ".npz" and path.is_file():
            dataset = folder.load_arrays(config, path)
        elif path.is_file():
            raise UserError(f"{config.name} is a single file: give the folder of the images, or an .npz file")
        elif len(path.parts) > 1 or path.suffix:
            raise UserError(f"there is no folder or file {config.name}")
        else:
            close = difflib.get_close_matches(config.name, DATASETS, 1)
            hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(DATASETS)}"
            raise UserError(f"unknown dataset {config.name!r}: {hint}, or give an image folder or .npz file")
    return dataset.subsample(config.limit, config.seed)


def _to_path(name: str) -> Path:
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, an unknown user, a null byte
        raise UserError(f"{name[:80]!r} is neither a dataset nor a path: {error}") from error
    return path
