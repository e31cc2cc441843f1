"""What becomes of freed memory: with glibc, whether it stays with the process for the next layer to use."""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_memory"]

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # names of glibc's <malloc.h>
SETTINGS = {MMAP_THRESHOLD: 2**30, TRIM_THRESHOLD: 2**31 - 1, TOP_PAD: 2**26}


def keep_memory() -> bool:
    """Let memory that is freed stay with this process; returns whether the C library did as told.

    A training step frees all of its features, and glibc gives large blocks back to the system, which hands them out
    again page by page, filled with zeros: on a CPU a tenth of the time of a large network. Memory then is what the
    largest step took until the process ends, so this is for commands that train, not for whoever imports layers.
    Nothing is changed elsewhere than on Linux, or where the environment says how glibc shall do it.
    """
    said = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if said or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    return mallopt is not None and min(mallopt(name, value) for name, value in SETTINGS.items()) == 1
