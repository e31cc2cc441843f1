"""What becomes of freed memory: with glibc, whether it stays with the process for the next layer to use."""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_memory"]

SETTINGS = {-4: 0, -1: -1}
"""Of glibc's mallopt: M_MMAP_MAX, no block is mapped by itself; M_TRIM_THRESHOLD, the heap is never cut short."""
SAID = ("mmap_threshold", "mmap_max", "trim_threshold", "top_pad")


def keep_memory() -> bool:
    """Let memory that is freed stay with this process; returns whether the C library did as told.

    A training step frees all of its features, and glibc gives large blocks back to the system, which hands them out
    again page by page, filled with zeros. Memory then stays at its peak until the process ends, so this is for
    commands that train, not for whoever imports layers. Nothing is changed elsewhere than on Linux, or where the
    environment says how glibc shall do it.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    said = any(f"MALLOC_{name.upper()}_" in os.environ or f"malloc.{name}" in tunables for name in SAID)
    if said or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    return mallopt is not None and all(mallopt(name, value) == 1 for name, value in SETTINGS.items())
