"""Twenty training steps of every recipe, compared with those that version 0.2.0 gave.

python benchmarks/losses.py                        compares with benchmarks/losses-0.2.0.json
python benchmarks/losses.py --write FILE.json      writes the losses instead

A refactoring should not change them. Another CPU rounds differently, and twenty steps amplify that: compare on the
machine that wrote the file (AMD EPYC, one thread), or write a file with the version before first.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from vpgcnn.errors import UserError
from vpgcnn.lab.training.loop import train
from vpgcnn.lab.training.recipes import RECIPES

REFERENCE = Path(__file__).with_name("losses-0.2.0.json")
STEPS = 20
TOLERANCE = 1e-5
Losses = dict[str, list[list[float]]]


def losses(data_dir: Path | None) -> Losses:
    """nll and kl of the first steps of each recipe whose data are there: recipe → [[step, nll, kl], …]."""
    found: Losses = {}
    for name, entry in RECIPES.items():
        config = replace(entry.cpu, epochs=1, log_steps=1, threads=1, select="last", device="cpu", data_dir=data_dir)
        if name == "flowers102":  # 1,020 images: two epochs are more than twenty steps
            config = replace(config, epochs=2)
        else:
            config = replace(config, data=replace(config.data, limit=STEPS * config.batch_size))
        with tempfile.TemporaryDirectory() as folder:
            try:
                train(config, Path(folder) / "run")
            except UserError as error:
                print(f"{name}: left out, {error}")
                continue
            lines = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
        steps = [[line["step"], line["nll"], line["kl"]] for line in lines if "nll" in line]
        found[name] = steps[:STEPS]
    return found


def main() -> int:
    """Compare or write; the exit code is 1 where a recipe differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="write the losses to this file")
    parser.add_argument("--data-dir", type=Path, help="where the published files are (default: $VPGCNN_DATA)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = losses(options.data_dir)
    if options.write:
        options.write.write_text(json.dumps(found) + "\n")
        return 0
    expected: Losses = json.loads(REFERENCE.read_text())
    worst = {
        name: max(
            abs(a - b) for one, two in zip(steps, expected[name], strict=True) for a, b in zip(one, two, strict=True)
        )
        for name, steps in found.items()
        if name in expected
    }
    for name, value in worst.items():
        print(f"{name:16} {value:.1e}{'' if value <= TOLERANCE else '  differs'}")
    return int(any(value > TOLERANCE for value in worst.values()))


if __name__ == "__main__":
    sys.exit(main())
