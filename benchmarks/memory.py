"""Peak memory of one training step of the per-image convolution, in a process of its own.

Called by run.py: `python memory.py ours|materialised ELEMENTS BATCH` prints bytes above the start.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pathwise import programs


def peak() -> int:
    """The largest resident size of this process so far, in bytes (Linux)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


if __name__ == "__main__":
    which, elements, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ours, materialised = programs(elements, batch)
    before = peak()
    (ours if which == "ours" else materialised)()
    print(peak() - before)
