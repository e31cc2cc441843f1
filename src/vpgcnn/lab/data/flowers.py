"""Flowers102 from its published files (jpg/, imagelabels.mat and setid.mat), with the official split."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import scratch_beside
from vpgcnn.lab.data.base import Dataset, Split
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.data.files import Archive, PublishedFile, cache_directory
from vpgcnn.lab.data.images import read_image

__all__ = ["ARCHIVE", "CLASSES", "FILES", "load_flowers"]

_HOME = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"
FILES = [
    PublishedFile(f"flowers-102/{name}", checksum, (f"{_HOME}{name}",))
    for name, checksum in (
        ("imagelabels.mat", "e0620be6f572b9609742df49c70aed4d"),
        ("setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c"),
    )
]
ARCHIVE = Archive(
    "102flowers.tgz", "52808999861908f626f3c1f4e79d11fa", (f"{_HOME}102flowers.tgz",), "flowers-102", "jpg/image_*.jpg"
)
COUNT = 8189
"""The number of images."""
CROP_SCALE = 1.5
"""With random crops, training images are this many times as large as the network's input."""
CENTRE_SHARE = 7 / 8
"""Without random crops, an image is cut to a centre square of this share of its shorter side."""

_NAMES = """pink primrose, hard-leaved pocket orchid, canterbury bells, sweet pea, english marigold, tiger lily,
moon orchid, bird of paradise, monkshood, globe thistle, snapdragon, colt's foot, king protea, spear thistle, yellow
iris, globe-flower, purple coneflower, peruvian lily, balloon flower, giant white arum lily, fire lily, pincushion
flower, fritillary, red ginger, grape hyacinth, corn poppy, prince of wales feathers, stemless gentian, artichoke,
sweet william, carnation, garden phlox, love in the mist, mexican aster, alpine sea holly, ruby-lipped cattleya,
cape flower, great masterwort, siam tulip, lenten rose, barberton daisy, daffodil, sword lily, poinsettia, bolero
deep blue, wallflower, marigold, buttercup, oxeye daisy, common dandelion, petunia, wild pansy, primula, sunflower,
pelargonium, bishop of llandaff, gaura, geranium, orange dahlia, pink-yellow dahlia, cautleya spicata, japanese
anemone, black-eyed susan, silverbush, californian poppy, osteospermum, spring crocus, bearded iris, windflower,
tree poppy, gazania, azalea, water lily, rose, thorn apple, morning glory, passion flower, lotus, toad lily,
anthurium, frangipani, clematis, hibiscus, columbine, desert-rose, tree mallow, magnolia, cyclamen, watercress,
canna lily, hippeastrum, bee balm, ball moss, foxglove, bougainvillea, camellia, mallow, mexican petunia, bromelia,
blanket flower, trumpet creeper, blackberry lily"""
CLASSES = tuple(_NAMES.replace("\n", " ").split(", "))


def load_flowers(config: DataConfig, root: Path) -> Dataset:
    """Load Flowers102: 1,020 images for training, 1,020 for validation and 6,149 for the test.

    Args:
        config: `size` is from 8 to 512 pixels (default 64). With `augment="resized-crop"`, training images are 1.5
            times as large.
        root: The data directory.

    Raises:
        UserError: If the size is out of range, or if a file is missing or damaged.
    """
    folder, size = root / "flowers-102", 64 if config.size is None else config.size
    if not 8 <= size <= 512:
        raise UserError(f"size must be from 8 to 512 pixels, got {size}")
    labels = _read_matrix(folder / "imagelabels.mat", "labels")
    parts = [_read_matrix(folder / "setid.mat", key) for key in ("trnid", "valid", "tstid")]
    if len(labels) != COUNT:
        raise UserError(f"imagelabels.mat in {folder} is not that of Flowers102: {len(labels)} labels, not {COUNT}")
    if sorted(np.concatenate(parts).tolist()) != list(range(1, COUNT + 1)):
        raise UserError(f"setid.mat in {folder} is not that of Flowers102: it must list each of {COUNT} images once")
    sizes = [round(CROP_SCALE * size) if config.augment == "resized-crop" else size, size, size]
    shares = [1.0 if stored > size else CENTRE_SHARE for stored in sizes]
    train, validation, test = (
        Split(_load_images(folder, part, stored, share), torch.from_numpy(labels[part - 1] - 1))
        for part, stored, share in zip(parts, sizes, shares, strict=True)
    )
    note = f"{COUNT} images of 102 flowers at {size}×{size} from {folder}"
    return Dataset("flowers102", CLASSES, train, validation, test, (note,))


def _read_matrix(path: Path, key: str) -> np.ndarray:
    """Read a list of integers from a .mat file."""
    from scipy.io import loadmat

    if not path.is_file():
        raise UserError(f"there is no {path}: `vpgcnn datasets fetch flowers102` downloads it")
    try:
        numbers: np.ndarray = loadmat(path)[key].ravel().astype(np.int64)
    except Exception as error:  # scipy raises almost anything on a damaged file
        raise UserError(f"{path} is damaged or does not belong to Flowers102: {error}") from error
    return numbers


def _load_images(folder: Path, numbers: np.ndarray, size: int, share: float) -> Tensor:
    """Return decoded images `(N, 3, size, size)`, from the cache if it holds them."""
    paths = [folder / "jpg" / f"image_{number:05}.jpg" for number in numbers]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise UserError(
            f"{_summarise(missing)} of Flowers102 missing in {folder / 'jpg'}: "
            "remove that folder, then `vpgcnn datasets fetch flowers102` downloads it"
        )
    cached = cache_directory() / f"flowers102-{_cache_key(paths, size, share)}.npy"
    if cached.is_file():
        try:
            found = np.load(cached, allow_pickle=False)
            if found.shape == (len(paths), 3, size, size) and found.dtype == np.uint8:
                return torch.from_numpy(found)
        except (OSError, ValueError, EOFError):
            pass  # a damaged copy is written again
    images = _decode(paths, size, share)
    _write_cache(cached, images)
    return images


def _decode(paths: list[Path], size: int, share: float) -> Tensor:
    """Decode all images, and report all damaged ones together."""
    damaged: list[str] = []

    def read(path: Path) -> Tensor:
        try:
            return read_image(path, size, 3, share)
        except UserError:
            damaged.append(path.name)
            return torch.zeros(3, size, size, dtype=torch.uint8)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        images = list(pool.map(read, paths))
    if damaged:
        raise UserError(
            f"{_summarise(sorted(damaged))} of Flowers102 damaged in {paths[0].parent}: "
            "remove that folder, then `vpgcnn datasets fetch flowers102` downloads it"
        )
    return torch.stack(images)


def _summarise(names: list[str]) -> str:
    listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"{listed} ({len(names)} image{'s' if len(names) > 1 else ''})"


def _cache_key(paths: list[Path], size: int, share: float) -> str:
    """Hash the size and, for each file, its path, length and time of modification."""
    digest = hashlib.blake2b(f"{size} {share}".encode(), digest_size=12)
    for path in paths:
        stat = path.stat()
        digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}".encode())
    return f"{size}-{digest.hexdigest()}"


def _write_cache(path: Path, images: Tensor) -> None:
    """Cache decoded images if the cache can be written."""
    scratch = scratch_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as stream:
            np.save(stream, images.numpy(), allow_pickle=False)
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
