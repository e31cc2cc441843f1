"""What `vpgcnn diagnose` costs: seconds and peak memory for few and for many images, of a network that is not ours.

python benchmarks/diagnose.py FOLDER        an image folder, say of Flowers102; 102 classes or fewer
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
COUNTS = (250, 1000)


def main(folder: str) -> None:
    """A line for each width and number of images, each in a process of its own."""
    classes = sum(path.is_dir() for path in Path(folder).iterdir())
    print("width  images  seconds  peak MB")
    with tempfile.TemporaryDirectory() as scratch:
        for width in (24, 64):
            net = Path(scratch) / f"net{width}.py"
            net.write_text(
                f"import sys\nsys.path.insert(0, {str(HERE)!r})\nfrom foreign import resnet18\n"
                f"def build():\n    return resnet18({width}, {classes})\n"
            )
            for count in COUNTS:
                words = ["diagnose", f"{net}:build", "--data", folder, "--group", "hue", "--size", "64"]
                words += ["--limit", str(count), "--out", f"{scratch}/out"]
                start = time.perf_counter()
                child = subprocess.Popen([sys.executable, "-m", "vpgcnn", *words], stdout=subprocess.DEVNULL)
                _, status, used = os.wait4(child.pid, 0)
                assert status == 0, "diagnose failed"
                assert isinstance(used, resource.struct_rusage)
                print(f"{width:5}  {count:6}  {time.perf_counter() - start:7.1f}  {used.ru_maxrss / 1024:7.0f}")


if __name__ == "__main__":
    main(sys.argv[1])
