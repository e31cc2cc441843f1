"""Random numbers that depend only on their purpose, never on what was drawn before."""

from __future__ import annotations

import hashlib

import torch

__all__ = ["generator", "seed_of"]


def seed_of(seed: int, purpose: str, number: int = 0) -> int:
    """The seed for one purpose, such as the "order" of epoch 3.

    Args:
        seed: The seed of the run.
        purpose: What the random numbers are for.
        number: Number of the epoch or step.
    """
    digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # torch takes 63 bits


def generator(seed: int, purpose: str, number: int = 0) -> torch.Generator:
    """A CPU generator with the seed that `seed_of` gives."""
    return torch.Generator().manual_seed(seed_of(seed, purpose, number))
