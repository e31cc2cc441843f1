"""The German Traffic Sign Recognition Benchmark (GTSRB), as published or with other image files in its layout."""

from __future__ import annotations

import csv
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.lab.data.base import Dataset, Split, holdout_split
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.data.files import ManualDownload
from vpgcnn.lab.data.signs import SIGNS
from vpgcnn.lab.pixels import DECODING_ERRORS

__all__ = ["CLASSES", "DOWNLOAD", "REACH", "disc", "load_gtsrb", "load_gtsrb_mirror", "load_gtsrb_turn", "load_signs"]

CLASSES = tuple(sign.name for sign in SIGNS)
DOWNLOAD = ManualDownload(
    "GTSRB",
    ("Final_Training/Images/*/*_*.*", "Final_Test/Images/[0-9]*.*"),
    "from the site of the German Traffic Sign Recognition Benchmark, download GTSRB_Final_Training_Images.zip, "
    "GTSRB_Final_Test_Images.zip and GTSRB_Final_Test_GT.zip, and unpack all three in the data directory",
)
SIZE = 40
"""The default height and width in pixels."""
COLUMNS = ("Filename", "Width", "Height", "Roi.X1", "Roi.Y1", "Roi.X2", "Roi.Y2", "ClassId")
TEST_TABLE = "GT-final_test.csv"
REACH = torch.tensor([[sign.rotation_reach, sign.mirror_reach] for sign in SIGNS])
"""The true range of each class, `(43, 2)`: rotation and mirror, in the order of the axes of `O2`."""


def load_gtsrb(config: DataConfig, root: Path) -> Dataset:
    """Load GTSRB; `Split.reach` `(N, 2)` holds the true shares of rotations and of mirrors, the two axes of `O2`.

    Every image is cut to the region of interest in the published tables and resized to a square. Pixels outside the
    largest centred disc are black, as are those that a rotation brings in from outside of an image; so the corners do
    not show how far an image was rotated.

    The photographs of one track show the same sign, one after another. Validation images are split off by track:
    `config.validation` of the tracks of each class, at least one, but never all.

    Args:
        config: `size` is from 8 to 512 pixels (default 40); `validation` and `seed` are used.
        root: The data directory, with the folder GTSRB.

    Raises:
        UserError: If the size is out of range, or if a file is missing, damaged or does not belong to GTSRB.
    """
    return load_signs("gtsrb", config, root, REACH)


def load_gtsrb_turn(config: DataConfig, root: Path) -> Dataset:
    """Load the images of `load_gtsrb`; `Split.reach` `(N,)` holds the true share of rotations."""
    return load_signs("gtsrb-turn", config, root, REACH[:, 0])


def load_gtsrb_mirror(config: DataConfig, root: Path) -> Dataset:
    """Load the images of `load_gtsrb`; `Split.reach` `(N,)` is 1 if the mirror keeps the class and 1/2 if not."""
    return load_signs("gtsrb-mirror", config, root, REACH[:, 1])


@dataclass(frozen=True)
class _Row:
    """A line of a published table. The region of the sign is left, upper, right, lower; the last two are exclusive."""

    path: Path
    size: tuple[int, int]
    region: tuple[int, int, int, int]
    label: int


def load_signs(
    name: str, config: DataConfig, root: Path, reach: Tensor, only: Container[int] = range(len(SIGNS))
) -> Dataset:
    """Load some of the signs, with the splits of `load_gtsrb`.

    Args:
        name: Of the dataset.
        config: As for `load_gtsrb`.
        root: The data directory.
        reach: The true range of each of the 43 classes, `(43,)` or `(43, K)`.
        only: The classes whose images are read.
    """
    folder, size = root / DOWNLOAD.folder, SIZE if config.size is None else config.size
    if not 8 <= size <= 512:
        raise UserError(f"size must be from 8 to 512 pixels, got {size}")
    try:
        train_rows, test_rows = _list_training(folder / "Final_Training" / "Images"), _list_test(folder)
    except OSError as error:
        raise UserError(f"cannot read {error.filename or folder}: {error.strerror or error}") from error
    labels = torch.tensor([row.label for row in train_rows])
    tracks = torch.tensor([_track(row.path) for row in train_rows])
    stay, out = _split_tracks(labels, tracks, config.validation, config.seed)
    parts = [train_rows[index] for index in stay.tolist()], [train_rows[index] for index in out.tolist()], test_rows
    train, validation, test = (_read_split([row for row in part if row.label in only], size, reach) for part in parts)
    note = f"{len(train_rows)} + {len(test_rows)} images of {len(CLASSES)} traffic signs at {size}×{size} from {folder}"
    return Dataset(name, CLASSES, train, validation, test, (note,))


# ---------------------------------------------------------------- tables


def _list_training(folder: Path) -> list[_Row]:
    """Read the table in the folder of each class."""
    _check_folder(folder)
    strange = [path for path in sorted(folder.iterdir()) if path.is_dir() and _class_of(path.name) is None]
    if strange:
        raise UserError(f"{strange[0]} is not a class of GTSRB: its folders are 00000 … {len(CLASSES) - 1:05}")
    rows = []
    for label in range(len(CLASSES)):
        inside = folder / f"{label:05}"
        _check_folder(inside)
        for row in _read_table(inside / f"GT-{label:05}.csv", inside):
            if row.label != label:
                raise UserError(f"GT-{label:05}.csv in {inside} says that {row.path.name} is of class {row.label}")
            rows.append(row)
    return rows


def _list_test(folder: Path) -> list[_Row]:
    """Read the table of the test images, which lies in one of several places, depending on how it was unpacked."""
    images = folder / "Final_Test" / "Images"
    _check_folder(images)
    places = [place / TEST_TABLE for place in (folder, images.parent, images, folder.parent)]
    table = next((place for place in places if place.is_file()), None)
    if table is None:
        raise UserError(
            f"there is no {places[0]}, the classes of the test images: it comes in GTSRB_Final_Test_GT.zip "
            "(GT-final_test.test.csv does not hold the classes)"
        )
    return _read_table(table, images)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}: {DOWNLOAD.instructions}")


def _class_of(name: str) -> int | None:
    """Return the class whose folder has this name; None if there is none."""
    return int(name) if re.fullmatch(r"000[0-9]{2}", name) and int(name) < len(CLASSES) else None


def _read_table(table: Path, images: Path) -> list[_Row]:
    """Read a published table, separated by semicolons; `images` is the folder of the images that it lists."""
    if not table.is_file():
        raise UserError(f"there is no {table}: unpack the archives of GTSRB again")
    try:
        with table.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, delimiter=";")
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise UserError(f"{table} has no column {missing[0]!r}: the columns of GTSRB are {';'.join(COLUMNS)}")
            rows = [_parse_row(row, f"{table}, line {reader.line_num}", images) for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{table} is damaged: {error}") from error
    if not rows:
        raise UserError(f"{table} lists no image")
    return rows


def _parse_row(row: dict[str, str | None], where: str, images: Path) -> _Row:
    name, numbers = row["Filename"] or "", []
    for column in COLUMNS[1:]:
        text = row[column] or ""
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise UserError(f"{where}: {column} must be a whole number, got {text!r}")
        numbers.append(int(text))
    if not name or Path(name).name != name:
        raise UserError(f"{where}: Filename must be the name of an image, got {name!r}")
    width, height, left, upper, right, lower, label = numbers
    if label >= len(CLASSES):
        raise UserError(f"{where}: there is no class {label}: those of GTSRB are 0 … {len(CLASSES) - 1}")
    if not (left <= right < width and upper <= lower < height):
        region = f"({left}, {upper}) … ({right}, {lower})"
        raise UserError(f"{where}: the region {region} is not inside of an image of {width}×{height} pixels")
    return _Row(images / name, (width, height), (left, upper, right + 1, lower + 1), label)


# ---------------------------------------------------------------- tracks


def _track(path: Path) -> int:
    """Return the track of a training image: the number before the underscore."""
    found = re.fullmatch(r"([0-9]{1,9})_[0-9]+\.\w+", path.name)
    if found is None:
        raise UserError(f"{path}: the name of a training image of GTSRB is TRACK_FRAME, such as 00003_00027.ppm")
    return int(found[1])


def _split_tracks(labels: Tensor, tracks: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Hold out whole tracks: the share of those of each class, at least one if the share is not 0, but never all.

    Args:
        labels: `(N,)`.
        tracks: `(N,)`. Each class numbers its own tracks.
        share: The share to hold out, in [0, 1).
        seed: The seed of the draw.

    Returns:
        The indices of the images that stay, and of those that are held out.
    """
    owners, owner = torch.stack([labels, tracks], dim=1).unique(dim=0, return_inverse=True)
    shuffled = torch.cat(holdout_split(len(owners), share, seed))
    held = torch.zeros(len(owners), dtype=torch.bool)
    for label in labels.unique():
        members = shuffled[owners[shuffled, 0] == label]
        count = max(round(share * len(members)), int(share > 0))
        held[members[: min(count, len(members) - 1)]] = True
    out = held[owner]
    return (~out).nonzero().flatten(), out.nonzero().flatten()


# ---------------------------------------------------------------- images


def _read_split(rows: Sequence[_Row], size: int, reach: Tensor) -> Split:
    labels = torch.tensor([row.label for row in rows], dtype=torch.long)
    return Split(_read_images(rows, size), labels, reach[labels])


def _read_images(rows: Sequence[_Row], size: int) -> Tensor:
    """Return the signs on black, `(N, 3, size, size)`."""
    pixels = np.empty((len(rows), size, size, 3), np.uint8)
    for place, row in enumerate(rows):
        pixels[place] = _read_sign(row, size)
    pixels[:, ~disc(size)] = 0
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def disc(size: int) -> np.ndarray:
    """Return which pixels have their centre in the largest centred disc, `(size, size)`."""
    offset = np.arange(size) - (size - 1) / 2
    inside: np.ndarray = np.hypot(offset[:, None], offset) <= size / 2
    return inside


def _read_sign(row: _Row, size: int) -> np.ndarray:
    """Read the region of a sign, resized with antialiasing to a square, which also undoes a view from the side."""
    from PIL import Image

    try:
        with Image.open(row.path) as image:
            if image.size == row.size:
                sign = image.convert("RGB").crop(row.region)  # resize(box=…) would blend in what surrounds the region
                return np.asarray(sign.resize((size, size), Image.Resampling.BILINEAR))
            found = image.size
    except FileNotFoundError as error:
        raise UserError(f"there is no {row.path}, which the tables list: unpack the archives of GTSRB again") from error
    except (*DECODING_ERRORS, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot read the image {row.path}: {reason}") from error
    (width, height), (listed_width, listed_height) = found, row.size
    raise UserError(
        f"{row.path} has {width}×{height} pixels, but its table says {listed_width}×{listed_height}: the region of the "
        "sign would be wrong"
    )
