"""Keep freed memory in the process, with glibc, so that the next layer can reuse it."""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_memory"]

SETTINGS = {-4: 0, -1: -1}
"""Settings of glibc's mallopt. M_MMAP_MAX = 0: no block is mapped separately. M_TRIM_THRESHOLD = -1: the heap is never
trimmed."""
VARIABLES = ("mmap_threshold", "mmap_max", "trim_threshold", "top_pad")


def keep_memory() -> bool:
    """Keep freed memory in this process instead of returning it to the system.

    A training step frees all of its features. glibc returns large blocks to the system, which then hands them out
    again page by page, filled with zeros. With this setting the memory of the process stays at its peak until it ends,
    so only commands that train use it. Nothing changes on other systems than Linux, or if environment variables
    already configure glibc's allocator.

    Returns:
        Whether the C library accepted the settings.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    configured = any(f"MALLOC_{name.upper()}_" in os.environ or f"malloc.{name}" in tunables for name in VARIABLES)
    if configured or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries do not have it
    return mallopt is not None and all(mallopt(name, value) == 1 for name, value in SETTINGS.items())
