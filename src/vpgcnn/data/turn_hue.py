"""Digits in colour of which some may be turned and some may change their hue: two symmetries, each partial by image."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from vpgcnn.data.base import Dataset, Split, seeded
from vpgcnn.data.colormnist import COLORS
from vpgcnn.data.config import DataConfig
from vpgcnn.data.mnist import digits_apart
from vpgcnn.errors import UserError

__all__ = ["CLASSES", "KINDS", "load_turn_hue"]

KINDS = {3: (True, True), 7: (True, False), 6: (False, True), 4: (False, False)}
"""Of each digit: whether it may be turned by 180°, and whether it may have any colour, before its class is another."""


def _names(digit: int, turns: bool, hues: bool) -> list[str]:
    upright = [str(digit)] if turns else [str(digit), f"{digit} turned"]
    return upright if hues else [f"{name} {color}" for name in upright for color in COLORS]


CLASSES = tuple(name for digit, (turns, hues) in KINDS.items() for name in _names(digit, turns, hues))
"""One of the 3s; three of the 7s, by colour; two of the 6s, by their way up; six of the 4s, by both."""


def load_turn_hue(config: DataConfig, root: Path) -> Dataset:
    """3s, 4s, 6s and 7s in red, green or blue, upright and turned by 180°.

    A 3 is a 3. A 7 is one however it is turned, but a red 7 is no blue one. A 6 is one in any colour, but turned it is
    another class. Of a 4 both count. So every mixture of the two symmetries occurs, and knowing one of them says
    nothing of the other. Every digit is there twice, upright and turned, each time in a colour by chance.
    """
    parts, note = digits_apart(config, root, KINDS)
    if min(len(images) for part in (parts[0], parts[2]) for images in part.values()) < 1:
        raise UserError("mnist-turn-hue needs a digit of each kind in every part")
    made = [_made(part, config.seed + place) for place, part in enumerate(parts)]
    return Dataset("mnist-turn-hue", CLASSES, made[0], made[1], made[2], (note,))


def _made(base: dict[int, Tensor], seed: int) -> Split:
    """Every digit upright and turned, in a colour by chance, with the share of each circle that it may use."""
    generator = seeded(seed)
    images, labels, reach = [], [], []
    first = 0
    for digit, (turns, hues) in KINDS.items():
        for turned in (False, True):
            own = base[digit].rot90(2, (-2, -1)) if turned else base[digit]
            color = torch.randint(len(COLORS), (len(own),), generator=generator)
            images.append(own * torch.eye(len(COLORS), dtype=torch.uint8)[color][..., None, None])
            way = 0 if turns else int(turned)
            labels.append(first + (torch.full_like(color, way) if hues else len(COLORS) * way + color))
            reach.append(torch.tensor([[1.0 if turns else 0.5, 1.0 if hues else 1 / len(COLORS)]]).expand(len(own), 2))
        first += len(_names(digit, turns, hues))
    return Split(torch.cat(images), torch.cat(labels), torch.cat(reach))
