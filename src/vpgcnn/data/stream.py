"""A folder of images read batch by batch: of all of them together only the names are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from vpgcnn.data.base import seeded
from vpgcnn.data.own import class_folders, image_files, parts_in, read_image
from vpgcnn.errors import UserError

__all__ = ["Batch", "ImageFolder", "readable"]


def readable(text: object) -> str:
    """A path or message as text that can be written, also where a file's name is no UTF-8."""
    return str(text).encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class Batch:
    """images: `(B, C, H, W)` in [0, 1]. labels: `(B,)`. places: of the images in the folder's list, `(B,)`."""

    images: Tensor
    labels: Tensor
    places: Tensor


@dataclass
class ImageFolder:
    """folder/class/*.png; or its part test, validation or val, where there is one.

    classes: the names of the class folders, sorted. paths and labels: of every image. skipped: what could not be
    read so far, path → reason; it is left out of the batches.
    """

    folder: Path
    classes: tuple[str, ...]
    paths: list[Path]
    labels: list[int]
    skipped: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, limit: int | None = None, seed: int = 0) -> ImageFolder:
        """List a folder. limit: only so many images, drawn by seed."""
        if limit is not None and limit < 1:
            raise UserError(f"limit must be at least 1, got {limit}")
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}")
        parts = parts_in(folder)
        chosen = parts.get("test", parts.get("validation", folder))
        classes = class_folders(chosen)
        listed = [(path, label) for label, name in enumerate(classes) for path in image_files(chosen / name)]
        if limit is not None and limit < len(listed):
            order = torch.randperm(len(listed), generator=seeded(seed))[:limit].sort().values.tolist()
            listed = [listed[place] for place in order]
        return cls(chosen, classes, [path for path, _ in listed], [label for _, label in listed])

    def __len__(self) -> int:
        return len(self.paths)

    def grey(self, count: int = 50) -> bool:
        """Whether all of some images, even over the folder, are stored as grey ones."""
        seen = []
        for path in self.paths[:: max(1, len(self) // count)]:
            try:
                seen.append(read_image(path).shape[0])
            except UserError:
                continue
        return bool(seen) and max(seen) == 1

    def batches(self, size: int, channels: int, batch: int = 64) -> Iterator[Batch]:
        """All images that can be read, their centre squares at size × size."""
        with ThreadPoolExecutor(4) as pool:
            for start in range(0, len(self), batch):
                places = range(start, min(start + batch, len(self)))
                read = list(pool.map(lambda place: self._read(place, size, channels), places))
                kept = [place for place, pixels in zip(places, read, strict=True) if pixels is not None]
                if kept:
                    images = torch.stack([pixels for pixels in read if pixels is not None]).float() / 255
                    yield Batch(images, torch.tensor([self.labels[place] for place in kept]), torch.tensor(kept))

    def image(self, place: int, size: int, channels: int) -> Tensor:
        """One of them, `(C, size, size)` in [0, 1]."""
        return read_image(self.paths[place], size, channels).float() / 255

    def _read(self, place: int, size: int, channels: int) -> Tensor | None:
        try:
            return read_image(self.paths[place], size, channels)
        except UserError as error:
            self.skipped[readable(self.paths[place])] = readable(error)
            return None
