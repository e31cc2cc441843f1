"""The model card of a network (its README on the Hub), written from its card and its record: known facts only."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from torch import nn

from vpgcnn import __version__
from vpgcnn.conversion import Converted
from vpgcnn.lab.networks import count_parameters
from vpgcnn.lab.training.checkpoint import Card
from vpgcnn.lab.training.config import Objective, TrainConfig
from vpgcnn.lab.training.record import LayerLevel, Record, Scores
from vpgcnn.levels import Shared
from vpgcnn.nn.conv import LiftConv2d
from vpgcnn.objective import Band, DualWeight, Price

__all__ = ["MARK", "built_on", "card_text"]

MARK = "<!-- vpgcnn rewrites this page when the network is saved here. Remove this line to keep your changes. -->"
SHOWN = 30
"""The card lists at most this many classes."""
FEW = 10_000
"""Below this number of training images, the card warns that they are few."""
CITATION = """```bibtex
@inproceedings{kim2024variational,
  title     = {Variational Partial Group Convolutions for Input-Aware Partial Equivariance
               of Rotations and Color-Shifts},
  author    = {Kim, Hyunsu and Kim, Yegon and Yang, Hongseok and Lee, Juho},
  booktitle = {International Conference on Machine Learning},
  year      = {2024},
  note      = {arXiv:2407.04271}
}
```
The network was made with vpgcnn, an independent implementation of that paper."""


def card_text(card: Card, record: Record, network: nn.Module, source: str) -> str:
    """Write the model card in Markdown, without its metadata.

    Args:
        card: What is needed to use the network.
        record: How it was trained and tested.
        network: The network.
        source: The argument for `from_pretrained` in the example.
    """
    parts: list[tuple[str, Callable[[], str]]] = [
        ("Data", lambda: _data(card, record)),
        ("Training", lambda: _training(record)),
        ("Metrics", lambda: _metrics(record)),
        ("Levels", lambda: _levels(card, record, network)),
        ("Limitations", lambda: _limits(card, record, network)),
        ("How to use it", lambda: _use(card, source)),
        ("Citation", lambda: CITATION),
    ]
    body = "\n\n".join(f"## {title}\n{text()}" for title, text in parts)
    return f"\n# {_plain(source.rsplit('/', 1)[-1])}\n\n{MARK}\n\n{_what(card, network)}\n\n{body}\n"


def built_on(network: nn.Module) -> str:
    """Describe the group that a network is built on; empty for an ordinary network."""
    built = next((part for part in network.modules() if isinstance(part, LiftConv2d | Converted)), None)
    words = []
    for axis in () if built is None else built.group.axes:
        if axis.name == "mirror":
            words.append("reflections")
        elif axis.name in ("saturation", "luminance"):
            words.append(f"{axis.count} shifts of {axis.name}")
        elif axis.name not in ("rotation", "hue"):  # of a group outside the package
            words.append(f"the elements of its {axis.name} axis")
        elif axis.order is None:
            words.append(f"rotations by any angle (of which it computes {axis.count})")
        elif axis.order > 1:
            moved = "hue shifts" if axis.name == "hue" else "rotations"
            words.append(f"{moved} by multiples of {360 / axis.order:g}°")
    return " and ".join(words)


def _what(card: Card, network: nn.Module) -> str:
    moves = built_on(network)
    images = f"{'grey' if card.channels == 1 else 'colour'} images of {card.size}×{card.size} pixels"
    text = (
        f"This network classifies {images} into {len(card.classes)} classes. It has {count_parameters(network):,} "
        "parameters. "
    )
    if not moves:
        text += "It is an ordinary convolutional network, without a built-in symmetry."
    else:
        text += f"It is built on {moves}. "
        if card.model.level.is_full:
            text += "It uses the whole group for every image."
        elif isinstance(card.model.level, Shared):
            text += (
                "It has learned how much of the group to use (the *level* θ of each layer), the same for all images."
            )
        else:
            text += "For each image it predicts how much of the group to use (the *level* θ of each layer)."
    if card.augmenter.kind == "policy":
        text += " It was trained with a learned augmentation policy (AdaAug)."
    elif card.augmenter.kind == "reweighted":
        text += " It was trained on moved images whose losses had learned weights (MetaAugment)."
    elif card.augmenter.kind == "autoaugment":
        text += " It was trained with the augmentation policy that AutoAugment found for CIFAR-10."
    elif card.augmenter.in_network:
        text += (
            f" Its answer is the mean over {card.augmenter.samples} randomly moved copies of the image "
            f"({card.augmenter.kind} range)."
        )
    return text


def _data(card: Card, record: Record) -> str:
    def numbers(values: tuple[float, ...]) -> str:
        return ", ".join(f"{value:.4f}" for value in values)

    counts = [
        f"{count:,} {kind} {'image' if count == 1 else 'images'}"
        for count, kind in (
            (record.train_images, "training"),
            (record.validation and record.validation.images, "validation"),
            (record.test and record.test.images, "test"),
        )
        if count
    ]
    lines = [f"- Dataset: {_plain(card.dataset) or 'unknown'}" + (f" ({', '.join(counts)})" if counts else "")]
    lines += [f"- Source: {_plain(note)}" for note in record.notes]
    names = ", ".join(map(_plain, card.classes[:SHOWN]))
    more = f", and {len(card.classes) - SHOWN} more in `config.json`" if len(card.classes) > SHOWN else ""
    lines.append(f"- Classes: {names}{more}")
    lines.append(
        f"- Input: pixels in [0, 1]. The network standardises them itself: mean {numbers(card.mean)}, standard "
        f"deviation {numbers(card.std)}"
    )
    if record.fingerprint:
        lines.append(f"- Fingerprint of images and labels: `{record.fingerprint}`")
    return "\n".join(lines)


def _training(record: Record) -> str:
    config = record.config
    if config is None:
        return "It is not known how the network was trained."
    chosen = {
        "accuracy": "the epoch with the best validation accuracy",
        "nll": "the epoch with the lowest validation nll",
    }
    kept = f"weights of {chosen.get(config.select, 'the last epoch')}"
    taken = f" (epoch {record.epoch})" if record.epoch is not None else ""
    network, levels = config.optimiser, config.level_optimiser.beside(config.optimiser)
    lines = [
        f"- {config.epochs} {'epoch' if config.epochs == 1 else 'epochs'}, batch size {config.batch_size}, "
        f"seed {config.seed}; {kept}{taken}",
        f"- Optimiser: {network.kind}, learning rate {network.lr:g}, weight decay {network.weight_decay:g}"
        + (
            f"; for the levels: {levels.kind}, {levels.lr:g}, {levels.weight_decay:g}"
            if not config.model.level.is_full
            else ""
        ),
        f"- Augmentation: {config.data.augment}"
        + (f", hue jitter {config.data.hue_jitter:g}" if config.data.hue_jitter else "")
        + f"; data seed {config.data.seed}",
    ]
    if not (config.model.level.is_full or isinstance(config.model.level, Shared)) or config.augmenter.kind in (
        "shared",
        "image",
        "mixture",
    ):
        lines.append(f"- Objective: nll + λ·kl, {_weight(config.objective)}")
    if config.balance:
        lines.append(f"- Long tail: the loss is balanced ({config.balance:g}) for classes that are equally frequent")
    made = [f"card written by vpgcnn {__version__}"]
    made += [f"trained with torch {record.torch}"] if record.torch else []
    made += [f"commit {_plain(record.commit)}"] if record.commit else []
    return "\n".join([*lines, f"- Software: {', '.join(made)}"])


def _weight(objective: Objective) -> str:
    if isinstance(objective, Price):
        return f"nll + {objective.nats:g} · unused"
    if isinstance(objective, DualWeight):
        return f"λ is a dual variable for an nll of {objective.tolerance:g} nats"
    if isinstance(objective, Band):
        return f"λ keeps the kl between {objective.low:g} and {objective.high:g} nats"
    if objective.start == objective.peak and not objective.fall:
        return f"λ = {objective.peak:g}"
    end = f", then to {objective.end:g}" if objective.fall else ""
    return f"λ from {objective.start:g} to {objective.peak:g}{end}"


def _metrics(record: Record) -> str:
    rows = [(name, scores) for name, scores in (("validation", record.validation), ("test", record.test)) if scores]
    if not rows:
        return "The network was not tested, or its test scores are not known."

    def row(name: str, scores: Scores) -> str:
        return f"| {name} | {scores.images:,} | {scores.accuracy:.2%} | {scores.nll:.4f} | {scores.kl:.4f} |"

    head = "| split | images | accuracy | nll | kl |\n|---|---|---|---|---|"
    notes = ["nll and kl are means per image, in nats. These are results of one seed; other seeds give other results."]
    if record.validation and _selected(record.config):
        notes.append("The epoch was chosen on the validation images, so the validation scores are slightly optimistic.")
    if record.test is None:
        notes.append("There are no test scores for these weights.")
    return "\n".join([head, *(row(*each) for each in rows), "", " ".join(notes)])


def _selected(config: TrainConfig | None) -> bool:
    return config is not None and config.select != "last"


def _levels(card: Card, record: Record, network: nn.Module) -> str:
    if not built_on(network) and card.augmenter.kind not in ("shared", "image", "mixture"):
        return "The network has no built-in symmetry, so it has no levels."
    if card.model.level.is_full and card.augmenter.kind not in ("shared", "image", "mixture"):
        return "Every layer uses the whole group (θ = 1) for every image."
    if not record.levels:
        return "The levels were not measured. `classify` returns them for your images."
    head = "| layer | mean θ | deviation | lowest | highest | narrowest class | widest class |\n" + "|---" * 7 + "|"

    def named(name: str, mean: float) -> str:
        return f"{_plain(name)} ({mean:.3f})" if name else "–"

    def row(one: LayerLevel) -> str:
        spread = f"{one.mean:.3f} | {f'{one.std:.3f}' if one.std else '–'} | {one.low:.3f} | {one.high:.3f}"
        return f"| {one.layer} | {spread} | {named(one.narrow, one.narrow_mean)} | {named(one.wide, one.wide_mean)} |"

    about = (
        f"θ is the share of the group that a layer uses for an image; 1 stands for the whole group. Measured on "
        f"{_plain(record.measured)}. A layer without a deviation has the same level for all images."
    )
    return "\n".join([head, *map(row, record.levels), "", about])


def _limits(card: Card, record: Record, network: nn.Module) -> str:
    lines = [f"It assigns one of its {len(card.classes)} classes to every image, whatever the image shows."]
    if record.test:
        lines.append(
            f"It was tested only on {record.test.images:,} images from the same source as its training images: not on "
            "images from other cameras, with noise or blur, with occluded objects, or made to mislead it. Its "
            "calibration was not measured."
        )
    else:
        lines.append("There is no test of these weights. Test the network on your images before you rely on it.")
    if record.train_images is not None and record.train_images < FEW:
        lines.append(
            f"It was trained on few images ({record.train_images:,}), so expect a lower accuracy on images from "
            "elsewhere."
        )
    moves = built_on(network)
    if "any angle" in moves:
        lines.append(
            "The network computes a few of all rotations, on a grid of pixels. With θ = 1, rotated images therefore "
            "get nearly, but not exactly, the same answer."
        )
    elif "rotations" in moves:
        lines.append("Its construction does not cover angles between the rotations that it is built on.")
    if "hue" in moves:
        lines.append(
            "A hue shift is the linear rotation of RGB about the grey axis. The hue shift in HSV, which most programs "
            "apply, agrees with it only at multiples of 120°."
        )
    if moves and not card.model.level.is_full:
        lines.append(
            "The level is what helped to predict the training labels. It does not measure how far an image can be "
            "moved before a person would call it something else."
        )
    if card.augmenter.in_network:
        lines.append(f"Each answer takes {card.augmenter.samples} passes through the network.")
    lines.append(f"Resize images to {card.size}×{card.size} pixels first.")
    return "\n".join(f"- {line}" for line in lines)


def _use(card: Card, source: str) -> str:
    return f"""`pip install 'vpgcnn[hub]'`, then
```python
import torch
from vpgcnn.apps.hub import Pretrained

net = Pretrained.from_pretrained({json.dumps(source)})
images = torch.rand(4, {card.channels}, {card.size}, {card.size})  # your images: numbers in [0, 1], or bytes
answer = net.classify(images)
print(answer.names, answer.probabilities.max(dim=1).values, answer.theta)
```
`net(images)` returns logits and the trace of the levels, as in training. The commands `vpgcnn evaluate`,
`predict`, `diagnose`, `serve` and `export` take `model.safetensors`, or its folder."""


def _plain(text: str) -> str:
    """Text that Markdown does not interpret, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", " ".join(text.split()))
