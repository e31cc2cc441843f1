"""What conversion and softening are worth, for two small transformers and a small CNN, on traffic signs.

python benchmarks/tuned_signs.py --data-dir DATA        2 seeds of three networks; an hour and a half on one core
python benchmarks/tuned_signs.py --data-dir DATA --networks vit --seeds 0

Each network is trained on thirteen upright signs of GTSRB. Then it is tuned in several ways for the same number of
epochs: as it is, with random quarter turns, converted to `Rotations(4)`, or with softened kernels. A straight arrow
that is turned is another sign (bound); no turn makes another class of the other signs (free). Nothing is chosen on the
test images: all arms have the same settings, and all are published. Writes results/scripts/tuned-signs.json and .md;
what is there is not run again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rows import keep, kept, level_cells
from vpgcnn import Elbo, Full, Prediction, Rotations, Variational, Window, convert, parameter_groups, soften
from vpgcnn.conversion import Converted
from vpgcnn.lab.data import DataConfig, Dataset, Split
from vpgcnn.lab.data.files import data_directory
from vpgcnn.lab.data.gtsrb import REACH, load_signs
from vpgcnn.lab.experiments.base import markdown, spread
from vpgcnn.measure import at_places, auroc, read_levels

COMMAND = "python benchmarks/tuned_signs.py"
GROUP, SIZE, CLASSES, BATCH = Rotations(4), 40, 43, 32
SIGNS = (1, 9, 12, 13, 14, 15, 17, 33, 34, 35, 38, 39, 40)
"""Three straight arrows (35, 38 and 39), which are bound, and ten free signs."""
EPOCHS, TUNING, RATE, TUNING_RATE = 12, 4, 1e-3, 1e-3
PLACES = 200
"""Test images of each kind that are moved, at most."""


# ---------------------------------------------------------------- networks


class Block(nn.Module):
    """Attention and a perceptron on tokens `(B, N, C)`, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens to tokens."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A plain vision transformer: a stem that makes tokens, positions that are learned, blocks, the mean, a head."""

    def __init__(self, stem: nn.Module, tokens: int, width: int, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.stem, self.places = stem, nn.Parameter(0.02 * torch.randn(1, tokens, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images to logits."""
        tokens = self.stem(images).flatten(2).transpose(1, 2) + self.places
        logits: Tensor = self.head(self.norm(self.blocks(tokens)).mean(dim=1))
        return logits


def stage(inner: int, outer: int, stride: int = 1) -> list[nn.Module]:
    """A convolution with its norm."""
    return [nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]


def vit() -> nn.Module:
    """5 × 5 patches of 8 pixels."""
    return Transformer(nn.Conv2d(3, 64, 8, stride=8), 25, 64)


def conv_stem() -> nn.Module:
    """The same after three convolutions with strides."""
    return Transformer(nn.Sequential(*stage(3, 16, 2), *stage(16, 32, 2), *stage(32, 64, 2)), 25, 64)


def cnn() -> nn.Module:
    """Five convolutions."""
    layers = [*stage(3, 16), nn.MaxPool2d(2), *stage(16, 32), nn.MaxPool2d(2), *stage(32, 64), nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers, *stage(64, 64), *stage(64, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {"vit": vit, "conv-stem": conv_stem, "cnn": cnn}


# ---------------------------------------------------------------- arms


@dataclass(frozen=True)
class Arm:
    """What is done with a trained network.

    Args:
        make: The network from the trained one and some images.
        epochs: Of fine-tuning.
        turns: Whether training images get random quarter turns.
    """

    make: Callable[[nn.Module, Tensor], nn.Module]
    epochs: int = TUNING
    turns: bool = False


def _softened(softness: float) -> Callable[[nn.Module, Tensor], nn.Module]:
    return lambda net, images: soften(net, GROUP, softness, example=images).network


def _converted(**options: Any) -> Callable[[nn.Module, Tensor], nn.Module]:
    return lambda net, images: convert(net, GROUP, example=images, **options)


SOFTNESS = (0.0, 0.25, 0.5, 0.75)
ARMS: dict[str, Arm] = {
    "as it is": Arm(lambda net, _: net, epochs=0),
    "tuned": Arm(lambda net, _: net),
    "tuned, random turns": Arm(lambda net, _: net, turns=True),
    "full, not tuned": Arm(_converted(level=Full()), epochs=0),
    "full": Arm(_converted(level=Full())),
    "variational": Arm(_converted()),
    "variational, open start": Arm(_converted(level=Variational(Window(initial=0.9)))),
    **{f"softness {s:g}, not tuned": Arm(_softened(s), epochs=0) for s in SOFTNESS},
    **{f"softness {s:g}": Arm(_softened(s)) for s in SOFTNESS},
}


# ---------------------------------------------------------------- training and measuring


def trained(net: nn.Module, split: Split, epochs: int, rate: float, seed: int, turns: bool = False) -> nn.Module:
    """Train by the loop of the README, with one cycle of the learning rate."""
    torch.manual_seed(seed)
    optimiser = torch.optim.AdamW(parameter_groups(net, lr=rate))
    steps = epochs * (len(split) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=max(steps, 2))
    net.train()
    for _ in range(epochs):
        for index in torch.randperm(len(split)).split(BATCH):
            if len(index) < BATCH:
                continue
            images = split.images[index] / 255
            if turns:
                turn = torch.randint(4, (len(index),))
                images = torch.stack([image.rot90(int(k), (-2, -1)) for image, k in zip(images, turn, strict=True)])
            optimiser.zero_grad()
            answer = net(images)
            answer = answer if isinstance(answer, Prediction) else Prediction(answer, {})
            Elbo.of(answer, split.labels[index]).total().backward()
            optimiser.step()
            schedule.step()
    return net.eval()


def logits_of(net: nn.Module) -> Callable[[Tensor], Tensor]:
    """The logits of a network, converted or not."""

    def predict(images: Tensor) -> Tensor:
        answer = net(images)
        found: Tensor = answer.logits if isinstance(answer, Prediction) else answer
        return found

    return predict


@torch.no_grad()
def accuracy(predict: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor) -> float:
    """The share of images that get the right class."""
    answers = torch.cat([predict(part).argmax(dim=1) for part in images.split(256)])
    return round(float((answers == labels).double().mean()), 4)


def quarter_turns(predict: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor) -> float:
    """The share of images that get the right class after one, two and three quarter turns."""
    return round(sum(accuracy(predict, images.rot90(k, (-2, -1)), labels) for k in (1, 2, 3)) / 3, 4)


def measured(net: nn.Module, data: Dataset) -> dict[str, Any]:
    """Accuracies upright and at unseen places, θ AUROC, and what the network costs."""
    net.eval()
    predict, row = logits_of(net), dict[str, Any]()
    for name, split in (("validation", data.validation), ("test", data.test)):
        assert split.reach is not None
        images, labels, free = split.images / 255, split.labels, split.reach == 1
        with torch.no_grad():
            right = torch.cat([predict(part).argmax(dim=1) for part in images.split(256)]) == labels
        row[name] = round(float(right.double().mean()), 4)
        row[f"{name}, bound"] = round(float(right[~free].double().mean()), 4)
        generator = torch.Generator().manual_seed(0)
        some = [kind.nonzero()[:, 0] for kind in (free, ~free)]
        some = [index[torch.randperm(len(index), generator=generator)[:PLACES]] for index in some]
        row[f"{name}, quarter turns"] = quarter_turns(predict, images[some[0]], labels[some[0]])
    chosen = torch.cat(some)
    assert split.reach is not None
    places = at_places(predict, images[chosen], labels[chosen], split.reach[chosen], "rotation")
    assert places.free is not None
    assert places.bound is not None
    row["free, all angles"], row["bound, small angles"] = round(places.free, 4), round(places.bound, 4)
    row["cost"] = round(net.cost.ratio, 2) if isinstance(net, Converted) else 1.0
    if isinstance(net, Converted):
        for values in read_levels(net, images).per_image().theta.values():
            row["theta"] = [round(float(values[kind].mean()), 3) for kind in (free, ~free)]
            row["auroc"] = round(auroc(values[free, 0], values[~free, 0]), 3)
    return row


# ---------------------------------------------------------------- the page


def page(rows: list[dict[str, Any]]) -> str:
    """All rows as a page: means over seeds."""
    keys = ["validation", "validation, quarter turns", "test", "test, bound", "test, quarter turns"]
    keys += ["free, all angles", "bound, small angles"]
    lines = []
    for network in NETWORKS:
        for arm in ARMS:
            found = [row for row in rows if (row["network"], row["arm"]) == (network, arm)]
            if not found:
                continue
            shares = [spread([row[key] for row in found]) for key in keys]
            lines.append([network, arm, str(len(found)), *shares, *level_cells(found)])
    heads = ["network", "arm", "seeds", *keys, "θ of free, bound", "θ AUROC", "multiplications"]
    about = (
        f"Thirteen traffic signs of GTSRB, {SIZE} pixels. {EPOCHS} epochs of training, {TUNING} of fine-tuning for "
        "every arm that is not called otherwise, on upright images but for “random turns”. Per cent; mean ± standard "
        "deviation over seeds. Free: no rotation makes another class of the sign; quarter turns and all 23 angles are "
        "those of free signs. Bound: a straight arrow; small angles are within two thirds of its range. θ AUROC: how "
        "often a free sign has a larger θ than a bound one. Multiplications: over those of the original."
    )
    return f"# tuned-signs\n\nWritten by `{COMMAND}`; do not edit.\n\n{about}\n\n{markdown(heads, lines)}\n"


def short(rows: list[dict[str, Any]]) -> str:
    """The table of docs/convert.md: means over seeds."""
    keys = ("test", "test, bound", "test, quarter turns", "free, all angles", "bound, small angles")
    lines = []
    for network in NETWORKS:
        for arm in ARMS:
            found = [row for row in rows if (row["network"], row["arm"]) == (network, arm)]
            if found:
                ranks = [row["auroc"] for row in found if "auroc" in row]
                shares = [f"{100 * mean(row[key] for row in found):.1f}" for key in keys]
                rank = f"{mean(ranks):.2f}" if ranks else "–"
                lines.append([network, arm, *shares, rank, f"{found[0]['cost']:.1f}", str(len(found))])
    heads = ["network", "", "upright", "upright, bound", "free, quarter turns", "free, 23 angles"]
    heads += ["bound, small angles", "θ AUROC", "multiplications", "seeds"]
    return markdown(heads, lines)


def main() -> None:
    """Train, tune and measure what the command line asks for, and write it down after each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="where the published files are (default: $VPGCNN_DATA)")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--out", type=Path, default=Path("results/scripts"), help="folder of the results")
    parser.add_argument("--cache", type=Path, default=Path("runs/tuned-signs"), help="folder of trained networks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = options.out / "tuned-signs.json"
    rows = kept(file)
    data = load_signs(
        "signs", DataConfig(name="gtsrb-turn", size=SIZE), data_directory(options.data_dir), REACH[:, 0], SIGNS
    )
    example = data.train.images[:8] / 255
    options.cache.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for name in options.networks:
            left = [
                arm
                for arm in options.arms
                if (name, arm, seed) not in {(r["network"], r["arm"], r["seed"]) for r in rows}
            ]
            if not left:
                continue
            torch.manual_seed(seed)
            net, weights = NETWORKS[name](), options.cache / f"{name}-{seed}.pt"
            if weights.exists():
                net.load_state_dict(torch.load(weights))
            else:
                torch.save(trained(net, data.train, EPOCHS, RATE, seed).state_dict(), weights)
            for arm in left:
                torch.manual_seed(seed)
                fresh = NETWORKS[name]()
                fresh.load_state_dict(net.state_dict())
                tuned = ARMS[arm].make(fresh.eval(), example)
                if ARMS[arm].epochs:
                    trained(tuned, data.train, ARMS[arm].epochs, TUNING_RATE, seed, ARMS[arm].turns)
                rows.append({"network": name, "arm": arm, "seed": seed, **measured(tuned, data)})
                print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
                order = [list(NETWORKS), list(ARMS)]
                rows.sort(key=lambda r: (order[0].index(r["network"]), order[1].index(r["arm"]), r["seed"]))
                keep(rows, file, COMMAND, page)


if __name__ == "__main__":
    main()
