"""A folder of images that is read batch by batch; only the file names are kept in memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from vpgcnn.errors import UserError
from vpgcnn.lab.data.base import seeded_generator
from vpgcnn.lab.data.folder import class_names, find_parts, image_files
from vpgcnn.lab.data.images import read_image

__all__ = ["Batch", "ImageFolder", "printable"]


def printable(text: object) -> str:
    """Return a path or message as text that can be printed, even if a file name is not valid UTF-8."""
    return str(text).encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class Batch:
    """Some images of a folder.

    Args:
        images: In [0, 1], `(B, C, H, W)`.
        labels: `(B,)`.
        indices: The positions of the images in `ImageFolder.paths`, `(B,)`.
    """

    images: Tensor
    labels: Tensor
    indices: Tensor


@dataclass
class ImageFolder:
    """The images in folder/CLASS/*.png.

    Args:
        folder: The folder that holds the classes.
        classes: The names of the class folders, sorted.
        paths: The image files.
        labels: The label of each image.
        skipped: The images that could not be read so far, path → reason. They are left out of the batches.
    """

    folder: Path
    classes: tuple[str, ...]
    paths: list[Path]
    labels: list[int]
    skipped: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, limit: int | None = None, seed: int = 0) -> ImageFolder:
        """List the images of a folder, or of its part "test" or else "validation" if it has one.

        Args:
            folder: The folder, which holds classes or parts.
            limit: List only this many images, drawn at random.
            seed: The seed of that draw.

        Raises:
            UserError: If there is no such folder, it has fewer than two classes, or `limit` is less than 1.
        """
        if limit is not None and limit < 1:
            raise UserError(f"limit must be at least 1, got {limit}")
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}")
        parts = find_parts(folder)
        chosen = parts.get("test", parts.get("validation", folder))
        classes = class_names(chosen)
        listed = [(path, label) for label, name in enumerate(classes) for path in image_files(chosen / name)]
        if limit is not None and limit < len(listed):
            order = torch.randperm(len(listed), generator=seeded_generator(seed))[:limit].sort().values.tolist()
            listed = [listed[index] for index in order]
        return cls(chosen, classes, [path for path, _ in listed], [label for _, label in listed])

    def __len__(self) -> int:
        return len(self.paths)

    def is_grey(self, count: int = 50) -> bool:
        """Return whether all images of an evenly spaced sample are stored in grey.

        Args:
            count: The approximate size of the sample. Images that cannot be read do not count.
        """
        channels = []
        for path in self.paths[:: max(1, len(self) // count)]:
            try:
                channels.append(read_image(path).shape[0])
            except UserError:
                continue
        return bool(channels) and max(channels) == 1

    def batches(self, size: int, channels: int, batch_size: int = 64, *, quick: bool = False) -> Iterator[Batch]:
        """Read all images in order; those that cannot be read are left out and added to `skipped`.

        Args:
            size: Each image is cropped to its centre square, which is resized to `size` × `size` pixels.
            channels: 1 or 3.
            batch_size: The number of images in a batch, before unreadable ones are left out.
            quick: As for `read_image`.

        Yields:
            Batches that hold at least one image.
        """
        with ThreadPoolExecutor(4) as pool:
            for start in range(0, len(self), batch_size):
                indices = range(start, min(start + batch_size, len(self)))
                read = list(pool.map(lambda index: self._read_or_skip(index, size, channels, quick), indices))
                kept = [index for index, pixels in zip(indices, read, strict=True) if pixels is not None]
                if kept:
                    images = torch.stack([pixels for pixels in read if pixels is not None]).float() / 255
                    yield Batch(images, torch.tensor([self.labels[index] for index in kept]), torch.tensor(kept))

    def image(self, index: int, size: int, channels: int) -> Tensor:
        """Read one image.

        Args:
            index: Its position in `paths`.
            size: The image is cropped to its centre square, which is resized to `size` × `size` pixels.
            channels: 1 or 3.

        Returns:
            `(C, size, size)` in [0, 1].

        Raises:
            UserError: If the image cannot be read.
        """
        return read_image(self.paths[index], size, channels).float() / 255

    def _read_or_skip(self, index: int, size: int, channels: int, quick: bool) -> Tensor | None:
        try:
            return read_image(self.paths[index], size, channels, quick=quick)
        except UserError as error:
            self.skipped[printable(self.paths[index])] = printable(error)
            return None
