"""Photographs of traffic signs, pale or vivid and dark or light: for some signs that is the class, for others noise."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from vpgcnn._ops.cone import widest
from vpgcnn.groups import Luminance, Saturation
from vpgcnn.lab.data.base import Dataset, Split, seeded_generator
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.data.gtsrb import REACH, disc, load_signs
from vpgcnn.lab.data.signs import SIGNS

__all__ = ["CLASSES", "KINDS", "SHIFT", "load_sign_colors"]

KINDS = {12: (True, True), 13: (True, False), 38: (False, True), 10: (False, False)}
"""For each sign: whether its class stays the same when its saturation changes, and when its luminance does."""
SHIFT = math.pi / 2
"""The shift, on the circle of saturations, between pale and vivid; on that of luminances, between dark and light."""
DARK = (math.radians(4), math.radians(36))
"""Half the angles of the luminances of a dark image, from its darkest to its lightest pixel."""
PALE = (0.0, math.radians(40))
"""The same for the saturations of a pale image."""
PARTS = 64
"""Images that are recoloured at a time."""


def _class_names(sign: int, free_saturation: bool, free_luminance: bool) -> list[str]:
    name = SIGNS[sign].name
    names = [name] if free_saturation else [f"pale {name}", f"vivid {name}"]
    return names if free_luminance else [f"{shade} {each}" for each in names for shade in ("dark", "light")]


CLASSES = tuple(
    name for sign, (saturation, luminance) in KINDS.items() for name in _class_names(sign, saturation, luminance)
)
"""One class of the first sign, two of the second, by luminance, two of the third, by saturation, four of the fourth."""


def load_sign_colors(config: DataConfig, root: Path) -> Dataset:
    """Load photographs of four traffic signs, each pale or vivid, and dark or light.

    The class of a priority road depends on neither, that of a yield sign on its luminance, that of "keep right" on its
    saturation, and that of "no overtaking by lorries" on both. The luminances of a photograph are stretched over a part
    of the first quarter of their circle, where images are dark, and its saturations are squeezed into the first quarter
    of theirs, where images are pale. A shift by a quarter makes it light, or vivid: no colour leaves its interval, so
    the shifts are exactly those of `Saturation(4)` and `Luminance(4)`, up to rounding to bytes. Every photograph
    appears twice, each time in a random version. `Split.reach` `(N, 2)` holds the true shares of saturations and
    luminances.

    Args:
        config: `size`, `validation` and `seed` are used, as for GTSRB.
        root: The data directory, with the folder GTSRB.
    """
    signs = load_signs("gtsrb-colors", config, root, REACH, KINDS)
    parts = (signs.train, signs.validation, signs.test)
    splits = [_build_split(part, config.seed + place) for place, part in enumerate(parts)]
    counts = f"{len(splits[0]) + len(splits[1])} + {len(splits[2])}"
    note = f"{counts} images of {len(KINDS)} traffic signs in other colours at {signs.size}×{signs.size} from {root}"
    return Dataset("gtsrb-colors", CLASSES, splits[0], splits[1], splits[2], (note,))


def _build_split(split: Split, seed: int) -> Split:
    """Recolour every photograph twice, at random, and record its class and its true share of each circle."""
    generator = seeded_generator(seed)
    images, labels, reach, first_label = [], [], [], 0
    for sign, (free_saturation, free_luminance) in KINDS.items():
        shown = split.images[split.labels == sign].repeat(2, 1, 1, 1)
        vivid, light = torch.randint(2, (2, len(shown)), generator=generator)
        images.append(_recolored(shown, vivid, light))
        offset = torch.zeros_like(vivid) if free_saturation else vivid
        labels.append(first_label + (offset if free_luminance else 2 * offset + light))
        bound = SHIFT / (2 * math.pi)
        shares = torch.tensor([[1.0 if free else bound for free in (free_saturation, free_luminance)]])
        reach.append(shares.expand(len(shown), 2))
        first_label += len(_class_names(sign, free_saturation, free_luminance))
    return Split(torch.cat(images), torch.cat(labels), torch.cat(reach))


def _recolored(images: Tensor, vivid: Tensor, light: Tensor) -> Tensor:
    """Images in bytes, in the version that 0 and 1 for each of them say."""
    parts = []
    for part, more, up in zip(images.split(PARTS), vivid.split(PARTS), light.split(PARTS), strict=True):
        moved = Saturation(4).recolor(_dark_and_pale(part.double() / 255), SHIFT * more.double()[:, None])
        moved = Luminance(4).recolor(moved, SHIFT * up.double()[:, None])
        parts.append((255 * moved).round().clamp(0, 255).to(torch.uint8))
    return torch.cat(parts) if parts else images


def _dark_and_pale(images: Tensor) -> Tensor:
    """Images `(N, 3, H, W)` in [0, 1] whose luminances and saturations are in the first quarter of their circles."""
    grey = images.mean(dim=1, keepdim=True)
    rest = images - grey
    inside = grey.flatten(1)[:, torch.from_numpy(disc(images.shape[-1])).flatten()]
    low, high = (inside.quantile(share, dim=1)[:, None, None, None] for share in (0.02, 0.98))
    lightness = ((grey - low) / (high - low).clamp_min(1e-3)).clamp(0, 1)
    dark = torch.sin(DARK[0] + lightness * (DARK[1] - DARK[0]))
    size = torch.linalg.vector_norm(rest, dim=1, keepdim=True)
    share = (size / widest(grey).clamp_min(1e-3)).clamp_max(1)
    pale = torch.sin(PALE[0] + share * (PALE[1] - PALE[0]))
    factor = widest(dark) * pale / size.clamp_min(1e-6)
    return dark + rest * torch.where(size > 1e-6, factor, 0.0)
