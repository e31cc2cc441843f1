"""Random numbers that depend only on what they are for, never on what came before."""

from __future__ import annotations

import hashlib

import torch

__all__ = ["generator", "seed_of"]


def seed_of(seed: int, purpose: str, number: int = 0) -> int:
    """A seed for one purpose: "order" of epoch 3, "step" 1200."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # torch takes 63 bits


def generator(seed: int, purpose: str, number: int = 0) -> torch.Generator:
    """A CPU generator with that seed."""
    return torch.Generator().manual_seed(seed_of(seed, purpose, number))
