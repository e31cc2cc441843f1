"""A segmentation network, converted: shapes of which some may be turned and some may not, and the truth is known.

python benchmarks/dense.py                  2 seeds of every arm; half an hour on one core
python benchmarks/dense.py --seeds 0

A small U-Net is trained on generated images: Ls and Ts, upright, whose class is the letter in every direction (free),
and arrows in four directions, whose class is the direction (bound). Then it is converted to `Rotations(4)` and tuned.
A third of the images show letters, a third arrows, a third both. Turned images have the turned truth: an arrow that is
turned is of another class. Writes results/scripts/dense.json and .md; what is there is not run again.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from rows import keep, kept, level_cells
from vpgcnn import Elbo, Full, Prediction, Rotations, Variational, Window, convert, parameter_groups
from vpgcnn.conversion import Converted
from vpgcnn.lab.experiments.base import markdown, spread
from vpgcnn.levels import LevelSpec
from vpgcnn.measure import auroc
from vpgcnn.objective import Price

COMMAND = "python benchmarks/dense.py"
GROUP, SIZE, NOISE, CLASSES = Rotations(4), 24, 0.25, 7
TRAIN, VALIDATION, TEST, BATCH, RATE, EPOCHS, TUNING = 1200, 300, 600, 24, 3e-3, 12, 4
KINDS = ("letters", "arrows", "both")
ARROWS = (3, 4, 5, 6)
"""The classes of arrows; a quarter turn counter-clockwise makes each of them the next. 0 is the background."""


# ---------------------------------------------------------------- images


def _shapes() -> tuple[Tensor, Tensor, Tensor]:
    arrow, ell, tee = (torch.zeros(9, 9) for _ in range(3))
    arrow[0:9, 4] = ell[0:9, 1:3] = ell[7:9, 1:7] = tee[0:2, 0:9] = tee[0:9, 4] = 1
    arrow[2:9, 3:6] = tee[2:9, 3:6] = 1
    for step in range(5):
        arrow[step, 4 - step : 5 + step] = 1
    return arrow, ell, tee


def drawn(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images `(N, 1, 24, 24)`, the class of every pixel `(N, 24, 24)`, and the kind of each image `(N,)`."""
    generator = torch.Generator().manual_seed(seed)
    arrow, *letters = _shapes()
    images, labels = torch.zeros(count, 1, SIZE, SIZE), torch.zeros(count, SIZE, SIZE, dtype=torch.long)
    kinds = torch.arange(count) % 3
    for number, kind in enumerate(kinds.tolist()):
        for half in range(2):  # an object on the left and one on the right
            is_arrow = kind == 1 or (kind == 2 and half == number % 2)
            which = int(torch.randint(4 if is_arrow else 2, (), generator=generator))
            shape = arrow.rot90(which) if is_arrow else letters[which]
            row = int(torch.randint(SIZE - 8, (), generator=generator))
            column = 12 * half + int(torch.randint(4, (), generator=generator))
            place = slice(row, row + 9), slice(column, column + 9)
            images[number, 0][place] = shape
            labels[number][place][shape > 0] = ARROWS[which] if is_arrow else 1 + which
    return images + NOISE * torch.randn(images.shape, generator=generator), labels, kinds


def turned(images: Tensor, labels: Tensor, quarters: int) -> tuple[Tensor, Tensor]:
    """Images after quarter turns, and the truth about them."""
    labels = labels.rot90(quarters, (-2, -1))
    first = ARROWS[0]
    labels = torch.where(labels >= first, first + (labels - first + quarters) % 4, labels)
    return images.rot90(quarters, (-2, -1)), labels


# ---------------------------------------------------------------- networks


def stage(inner: int, outer: int, stride: int = 1) -> nn.Sequential:
    """A convolution with its norm."""
    return nn.Sequential(nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU())


class UNet(nn.Module):
    """Two strides down, transposed convolutions up, with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = stage(1, 12), stage(12, 24, 2), stage(24, 32, 2)
        self.deep = stage(32, 32)
        self.up2, self.up1 = nn.ConvTranspose2d(32, 24, 2, 2), nn.ConvTranspose2d(24, 12, 2, 2)
        self.join2, self.join1, self.head = stage(48, 24), stage(24, 16), nn.Conv2d(16, CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Images to scores of every pixel."""
        one = self.one(images)
        two = self.two(one)
        x = self.up2(self.deep(self.three(two)))
        x = self.up1(self.join2(torch.cat([x, two], dim=1)))
        scores: Tensor = self.head(self.join1(torch.cat([x, one], dim=1)))
        return scores


ARMS: dict[str, tuple[LevelSpec | None, float] | None] = {
    "as it is": None,
    "tuned": None,
    "tuned, random turns": None,
    "full": (Full(), 0.0),
    **{f"variational, price {price:g}": (Variational(Window(initial=0.25)), price) for price in (0.05, 0.005)},
}
"""The level and the price of arms that are converted."""


def trained(
    net: nn.Module, images: Tensor, labels: Tensor, epochs: int, price: float, turns: bool = False
) -> nn.Module:
    """A loop of one's own. turns: As one would who knows nothing of arrows: masks turn, classes stay."""
    optimiser = torch.optim.AdamW(parameter_groups(net, lr=RATE))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=epochs * (len(images) // BATCH))
    net.train()
    for _ in range(epochs):
        for index in torch.randperm(len(images)).split(BATCH):
            shown, truth = images[index], labels[index]
            if turns:
                quarter = int(torch.randint(4, ()))
                shown, truth = shown.rot90(quarter, (-2, -1)), truth.rot90(quarter, (-2, -1))
            answer = net(shown)
            answer = answer if isinstance(answer, Prediction) else Prediction(answer, {})
            optimiser.zero_grad()
            Price(price).loss(Elbo.of(answer, truth), 0.0).backward()
            optimiser.step()
            schedule.step()
    return net.eval()


@torch.no_grad()
def scores(net: nn.Module, images: Tensor, labels: Tensor, kinds: Tensor) -> dict[str, float]:
    """The mean intersection over union of the classes that each kind of image shows, without the background."""
    answer = net(images)
    found = (answer.logits if isinstance(answer, Prediction) else answer).argmax(dim=1)
    row = {"pixels": float((found == labels).double().mean())}
    for number, kind in enumerate(KINDS):
        ours, truth = found[kinds == number], labels[kinds == number]
        each = []
        for label in truth.unique().tolist():
            if label:
                one, two = ours == label, truth == label
                each.append(float((one & two).sum() / (one | two).sum()))
        row[kind] = sum(each) / len(each)
    return {name: round(value, 4) for name, value in row.items()}


def measured(net: nn.Module, split: tuple[Tensor, Tensor, Tensor], name: str) -> dict[str, Any]:
    """Scores upright, and the mean over three quarter turns."""
    images, labels, kinds = split
    rows = [scores(net, *turned(images, labels, quarters), kinds) for quarters in range(4)]
    turning = {key: round(mean(row[key] for row in rows[1:]), 4) for key in rows[0]}
    return {f"{name} upright": rows[0], f"{name} turned": turning}


# ---------------------------------------------------------------- the page


def page(rows: list[dict[str, Any]]) -> str:
    """All rows as a page: means over seeds."""
    lines = []
    for arm in ARMS:
        found = [row for row in rows if row["arm"] == arm]
        if not found:
            continue
        cells = [spread([row[f"validation {way}"]["pixels"] for row in found]) for way in ("upright", "turned")]
        for key in ("pixels", *KINDS):
            cells += [spread([row[f"test {way}"][key] for row in found]) for way in ("upright", "turned")]
        lines.append([arm, str(len(found)), *cells, *level_cells(found)])
    ways = [
        f"{what}, {way}"
        for what in ("test pixels", *(f"IoU {kind}" for kind in KINDS))
        for way in ("upright", "turned")
    ]
    heads = ["arm", "seeds", "validation pixels, upright", "validation pixels, turned", *ways]
    heads += ["θ of letters, arrows, both", "θ AUROC", "multiplications"]
    about = (
        f"A U-Net on {TRAIN} generated images of {SIZE} pixels, {EPOCHS} epochs, then {TUNING} of tuning for every arm "
        "but the first. Letters are upright in training, arrows have all four directions. Per cent; mean ± standard "
        "deviation over seeds; turned: the mean of three quarter turns, with the truth turned (an arrow then has "
        "another class). IoU: mean intersection over union of the classes that such images show, without the "
        "background. θ AUROC: how often an image of letters has a larger θ than one of arrows. Random turns: of images "
        "and masks, while classes stay."
    )
    return f"# dense\n\nWritten by `{COMMAND}`; do not edit.\n\n{about}\n\n{markdown(heads, lines)}\n"


def short(rows: list[dict[str, Any]]) -> str:
    """The table of docs/dense.md: means over seeds."""
    lines = []
    for arm in ARMS:
        found = [row for row in rows if row["arm"] == arm]
        if not found:
            continue
        cells = [
            " → ".join(f"{100 * mean(row[f'test {way}'][kind] for row in found):.1f}" for way in ("upright", "turned"))
            for kind in KINDS
        ]
        theta = [row["theta"] for row in found if "theta" in row]
        shown = ", ".join(f"{mean(values):.2f}" for values in zip(*theta, strict=True)) or "–"
        lines.append([arm, *cells, shown, str(len(found))])
    heads = ["", "letters (free)", "arrows (bound)", "both", "θ of letters, arrows, both", "seeds"]
    return f"Mean IoU in per cent, upright → turned:\n\n{markdown(heads, lines)}"


def main() -> None:
    """Train, convert, tune and measure what the command line asks for, and write it down after each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--out", type=Path, default=Path("results/scripts"), help="folder of the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    file = options.out / "dense.json"
    rows = kept(file)
    train, validation, test = drawn(TRAIN, 0), drawn(VALIDATION, 1), drawn(TEST, 2)
    for seed in options.seeds:
        done = {row["arm"] for row in rows if row["seed"] == seed}
        if done >= ARMS.keys():
            continue
        torch.manual_seed(seed)
        plain = trained(UNet(), *train[:2], EPOCHS, 0.0)
        for arm, choice in ARMS.items():
            if arm in done:
                continue
            torch.manual_seed(seed)
            net, price = copy.deepcopy(plain), 0.0
            if choice is not None:
                net, price = convert(net, GROUP, level=choice[0], levels="deep", example=train[0][:4]), choice[1]
            if arm != "as it is":
                trained(net, *train[:2], TUNING, price, turns=arm.endswith("turns"))
            row: dict[str, Any] = {"arm": arm, "seed": seed}
            row |= measured(net, validation, "validation") | measured(net, test, "test")
            row["cost"] = round(net.cost.ratio, 2) if isinstance(net, Converted) else 1.0
            if isinstance(net, Converted):
                with torch.no_grad():
                    for values in net(test[0]).theta.values():
                        each = [values[test[2] == number, 0] for number in range(3)]
                        row["theta"] = [round(float(part.mean()), 3) for part in each]
                        row["auroc"] = round(auroc(each[0], each[1]), 3)
            print(json.dumps(row), flush=True)
            rows.append(row)
            rows.sort(key=lambda row: (list(ARMS).index(row["arm"]), row["seed"]))
            keep(rows, file, COMMAND, page)


if __name__ == "__main__":
    main()
