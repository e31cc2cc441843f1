"""The README's network in a loop of one's own, on photographs that no setting was chosen on.

python benchmarks/own_loop.py --data-dir DATA               2,000 and 20,000 images of CIFAR-10; 20 minutes on one core
python benchmarks/own_loop.py --data-dir DATA --images 2000

Trains the network with a level for each image, with the whole group, and without a group, all by the same ten lines,
and writes results/scripts/own-loop.json: θ after each epoch, test accuracy, and accuracy of moved images.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn import (
    SO2,
    Elbo,
    Full,
    Group,
    GroupBatchNorm,
    GroupConv2d,
    GroupFeature,
    GroupPool,
    Hue,
    LiftConv2d,
    Prediction,
    Rotations,
    SpatialPool,
    Variational,
    name_layers,
    parameter_groups,
)
from vpgcnn.lab.data import DataConfig, Split, load
from vpgcnn.lab.experiments.base import markdown
from vpgcnn.levels import LevelSpec
from vpgcnn.measure import Circle, at_places, idle_levels, read_levels

EPOCHS, BATCH, RATE = 8, 64, 5e-3
COMMAND = "python benchmarks/own_loop.py"
ARMS: dict[str, tuple[Group, LevelSpec, Circle]] = {
    "rotations, a level for each image": (SO2(8), Variational(), "rotation"),
    "rotations, the whole group": (SO2(8), Full(), "rotation"),
    "hues, a level for each image": (Hue(3), Variational(), "hue"),
    "hues, the whole group": (Hue(3), Full(), "hue"),
    "no group": (Rotations(1), Full(), "rotation"),
}


class Net(nn.Module):
    """The README's network with a pool, so that an epoch takes seconds."""

    def __init__(self, group: Group, level: LevelSpec) -> None:
        super().__init__()
        self.lift = LiftConv2d(3, 16, 3, group, padding="same")
        self.norm1, self.pool = GroupBatchNorm(16), SpatialPool("max", 2)
        self.conv1 = GroupConv2d(16, 24, 3, group, padding="same")
        self.norm2 = GroupBatchNorm(24)
        self.conv2 = GroupConv2d(24, 32, 3, group, level=level)
        self.norm3, self.group_pool, self.head = GroupBatchNorm(32), GroupPool("mean"), nn.Linear(32, 10)
        name_layers(self)

    def forward(self, images: Tensor) -> Prediction:
        """Images to a prediction."""
        x: GroupFeature = self.pool(self.norm1(self.lift(images)).map(torch.relu))
        x = self.pool(self.norm2(self.conv1(x)).map(torch.relu))
        x = self.norm3(self.conv2(x)).map(torch.relu)
        return Prediction(self.head(self.group_pool(x).mean(dim=(-2, -1))), x.trace)


def run(group: Group, level: LevelSpec, circle: Circle, train: Split, test: Split, seed: int) -> dict[str, Any]:
    """Train one network and measure it."""
    torch.manual_seed(seed)
    net = Net(group, level)
    optimiser = torch.optim.AdamW(parameter_groups(net, lr=RATE))
    # At a constant rate the running statistics of the norms would lag behind the weights up to the end.
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=EPOCHS * -(-len(train) // BATCH))
    curve = []
    for _ in range(EPOCHS):
        net.train()
        for index in torch.randperm(len(train)).split(BATCH):
            optimiser.zero_grad()
            Elbo.of(net(train.images[index] / 255), train.labels[index]).total().backward()
            optimiser.step()
            schedule.step()
        theta = read_levels(net, test.images[:500]).per_image().theta
        curve.append([[round(float(v.mean()), 3), round(float(v.std()), 3)] for v in theta.values()])
    net.eval()
    reading = read_levels(net, test.images)
    images, labels = test.images[:500] / 255, test.labels[:500]
    moved = at_places(lambda pixels: net(pixels).logits, images, labels, None, circle).moved
    return {
        "accuracy": round(float((reading.logits.argmax(dim=1) == test.labels).double().mean()), 4),
        "moved": None if moved is None else round(moved, 4),
        "theta": curve,
        "says": idle_levels(reading),
    }


def page(rows: list[dict[str, Any]]) -> str:
    """All rows as a page."""
    lines = []
    for row in sorted(rows, key=lambda row: (row["images"], row["seed"])):
        theta = [f"{epoch[-1][0]:.2f} ± {epoch[-1][1]:.2f}" for epoch in row["theta"] if epoch]
        cells = [row["images"], row["arm"], row["seed"], f"{row['accuracy']:.1%}", f"{row['moved']:.1%}"]
        lines.append([*map(str, cells), " → ".join(theta) or "–", " ".join(row["says"]) or "–"])
    heads = ["images", "network", "seed", "test", "moved images", "θ after each epoch", "what it says"]
    about = (
        f"The README's network, trained by a loop of ten lines on images of CIFAR-10, {EPOCHS} epochs. Moved images: "
        "the first 500 of the test at 23 rotations or 11 hue shifts. θ: mean ± standard deviation over images."
    )
    return f"# own-loop\n\nWritten by `{COMMAND}`; do not edit.\n\n{about}\n\n{markdown(heads, lines)}\n"


def main() -> None:
    """Train all arms at all sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="where the published files are (default: $VPGCNN_DATA)")
    parser.add_argument("--images", type=int, nargs="+", default=[2_000, 20_000], help="numbers of training images")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("results/scripts/own-loop.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    for count in options.images:
        data = load(DataConfig(name="cifar10", limit=count), options.data_dir)
        test = data.test[torch.arange(2_000)]
        for seed in options.seeds:
            for name, (group, level, circle) in ARMS.items():
                if any((row["images"], row["arm"], row["seed"]) == (count, name, seed) for row in rows):
                    continue
                found = run(group, level, circle, data.train, test, seed)
                rows.append({"images": count, "arm": name, "seed": seed, **found})
                print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
                options.out.write_text(json.dumps({"command": COMMAND, "rows": rows}, ensure_ascii=False, indent=1))
                options.out.with_suffix(".md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
