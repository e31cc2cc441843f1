"""The README of a published network, from its card and its record: nothing is said that is not known."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from torch import nn

from vpgcnn import __version__
from vpgcnn.conv import LiftConv2d
from vpgcnn.convert import Converted
from vpgcnn.models import count_parameters
from vpgcnn.training.checkpoint import Card
from vpgcnn.training.config import ObjectiveConfig, TrainConfig
from vpgcnn.training.record import LayerLevel, Record, Scores

__all__ = ["MARK", "built_on", "card_text"]

MARK = (
    "<!-- vpgcnn writes this page anew whenever the network is saved here. Remove this line to keep your own text. -->"
)
SHOWN = 30
"""Classes that are listed, at most."""
FEW = 10_000
"""Training images below which a card says that they are few."""
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
    """The page in Markdown, without its metadata. source: what `from_pretrained` is to be called with."""
    parts: list[tuple[str, Callable[[], str]]] = [
        ("Data", lambda: _data(card, record)),
        ("Training", lambda: _training(record)),
        ("Metrics", lambda: _metrics(record)),
        ("Levels", lambda: _levels(card, record, network)),
        ("Limits", lambda: _limits(card, record, network)),
        ("How to use it", lambda: _use(card, source)),
        ("Citation", lambda: CITATION),
    ]
    body = "\n\n".join(f"## {title}\n{text()}" for title, text in parts)
    return f"\n# {_plain(source.rsplit('/', 1)[-1])}\n\n{MARK}\n\n{_what(card, network)}\n\n{body}\n"


def built_on(network: nn.Module) -> str:
    """The moves that a network is built on, in words; empty for an ordinary one."""
    built = next((part for part in network.modules() if isinstance(part, LiftConv2d | Converted)), None)
    points = built.points if isinstance(built, LiftConv2d) else None
    words = []
    for axis in () if built is None else built.group.axes:
        if axis.name == "mirror":
            words.append("mirror images")
        elif axis.order is None:
            words.append(f"rotations, by any angle, of which {points} are computed")
        elif axis.order is not None and axis.order > 1:
            moved = "hue shifts" if axis.name == "hue" else "rotations"
            words.append(f"{moved} by multiples of {360 / axis.order:g}°")
    return " and ".join(words)


def _what(card: Card, network: nn.Module) -> str:
    moves = built_on(network)
    sees = f"{'grey' if card.channels == 1 else 'colour'} images of {card.size}×{card.size} pixels"
    said = f"A classifier of {sees} into {len(card.classes)} classes, with {count_parameters(network):,} parameters. "
    if not moves:
        said += "It is an ordinary convolutional network, without a symmetry built in."
    else:
        said += f"It is built on {moves}. "
        said += {
            "variational": "For each image it predicts how much of that symmetry to use (the *level* θ of a layer).",
            "learned": "How much of that symmetry it uses (the *level* θ of a layer) is learned, one for all images.",
            "full": "It uses all of that symmetry, for every image.",
        }[card.model.level]
    if card.augmenter.kind == "policy":
        said += " It was trained with a learned policy of augmentation (AdaAug)."
    elif card.augmenter.kind != "none":
        copies = f"the mean over {card.augmenter.samples} moved copies of an image"
        said += f" Random moves come before it ({card.augmenter.kind} range): its answer is {copies}."
    return said


def _data(card: Card, record: Record) -> str:
    counts = [
        f"{count:,} {of}"
        for count, of in (
            (record.train_images, "training images"),
            (record.validation and record.validation.images, "validation images"),
            (record.test and record.test.images, "test images"),
        )
        if count
    ]
    lines = [f"- Dataset: {_plain(card.dataset) or 'not known'}" + (f" ({', '.join(counts)})" if counts else "")]
    lines += [f"- Source: {_plain(note)}" for note in record.notes]
    names = ", ".join(map(_plain, card.classes[:SHOWN]))
    more = f", and {len(card.classes) - SHOWN} more in `config.json`" if len(card.classes) > SHOWN else ""
    lines.append(f"- Classes: {names}{more}")
    lines.append(
        f"- Standardisation: pixels in [0, 1], minus {card.mean:.4f}, over {card.std:.4f}; the same for all channels"
    )
    if record.fingerprint:
        lines.append(f"- Fingerprint of images and labels: `{record.fingerprint}`")
    return "\n".join(lines)


def _training(record: Record) -> str:
    config = record.config
    if config is None:
        return "How the network was trained is not known."
    chosen = {"accuracy": "with the best validation accuracy", "nll": "with the lowest validation nll"}
    taken = f"; the weights are those after epoch {record.epoch}" if record.epoch is not None else ""
    kept = "the last epoch is kept" if config.select == "last" else f"the epoch {chosen[config.select]} is kept"
    network, levels = config.network, config.levels
    lines = [
        f"- {config.epochs} epochs, batches of {config.batch_size}, seed {config.seed}; {kept}{taken}",
        f"- Optimiser: {network.kind}, highest rate {network.rate:g}, weight decay {network.decay:g}"
        + (f"; levels: {levels.kind}, {levels.rate:g}, {levels.decay:g}" if config.model.level != "full" else ""),
        f"- Images: augmentation {config.data.augment}"
        + (f", hue jitter {config.data.hue_jitter:g}" if config.data.hue_jitter else "")
        + f"; data seed {config.data.seed}",
    ]
    if config.model.level == "variational" or config.augmenter.kind in ("shared", "image"):
        lines.append(f"- Objective: nll + λ·kl, {_weight(config.objective)}")
    if config.objective.balance:
        lines.append(f"- Long tail: the loss is balanced ({config.objective.balance:g}), for equally frequent classes")
    made = [f"vpgcnn {__version__} wrote this page"]
    made += [f"torch {record.torch} trained it"] if record.torch else []
    made += [f"commit {_plain(record.commit)}"] if record.commit else []
    return "\n".join([*lines, f"- Software: {', '.join(made)}"])


def _weight(objective: ObjectiveConfig) -> str:
    if objective.mode == "dual":
        return f"λ as a dual variable for an nll of {objective.tolerance:g} nats"
    if objective.mode == "band":
        return f"λ keeps the kl between {objective.low:g} and {objective.high:g} nats"
    if objective.start == objective.peak and not objective.fall:
        return f"λ = {objective.peak:g}"
    end = f", then to {objective.end:g}" if objective.fall else ""
    return f"λ from {objective.start:g} to {objective.peak:g}{end}"


def _metrics(record: Record) -> str:
    rows = [(name, scores) for name, scores in (("validation", record.validation), ("test", record.test)) if scores]
    if not rows:
        return "The network was not tested, or its test is not known."

    def row(name: str, scores: Scores) -> str:
        return f"| {name} | {scores.images:,} | {scores.accuracy:.2%} | {scores.nll:.4f} | {scores.kl:.4f} |"

    head = "| part | images | accuracy | nll | kl |\n|---|---|---|---|---|"
    notes = ["nll and kl are means per image, in nats. One run with one seed: how far others differ is not in here."]
    if record.validation and _selected(record.config):
        notes.append("The epoch was chosen by the validation images, whose scores are therefore a little too good.")
    if record.test is None:
        notes.append("There are no test scores of these weights.")
    return "\n".join([head, *(row(*each) for each in rows), "", " ".join(notes)])


def _selected(config: TrainConfig | None) -> bool:
    return config is not None and config.select != "last"


def _levels(card: Card, record: Record, network: nn.Module) -> str:
    if not built_on(network) and card.augmenter.kind not in ("shared", "image"):
        return "There is no symmetry in the network, hence no level."
    if card.model.level == "full" and card.augmenter.kind not in ("shared", "image"):
        return "Every layer uses all of the symmetry (θ = 1) for every image."
    if not record.levels:
        return "The levels were not measured: `classify` gives them for images of your own."
    head = "| layer | θ, mean | deviation | lowest | highest | narrowest class | widest class |\n" + "|---" * 7 + "|"

    def named(name: str, mean: float) -> str:
        return f"{_plain(name)} ({mean:.3f})" if name else "–"

    def row(one: LayerLevel) -> str:
        spread = f"{one.mean:.3f} | {f'{one.std:.3f}' if one.std else '–'} | {one.low:.3f} | {one.high:.3f}"
        return f"| {one.layer} | {spread} | {named(one.narrow, one.narrow_mean)} | {named(one.wide, one.wide_mean)} |"

    about = (
        f"θ is the share of the symmetry that a layer uses for an image, 1 is all of it. Over "
        f"{_plain(record.measured)}; a layer without a deviation has the same level for all images."
    )
    return "\n".join([head, *map(row, record.levels), "", about])


def _limits(card: Card, record: Record, network: nn.Module) -> str:
    lines = [f"It answers with one of its {len(card.classes)} classes, for an image of anything."]
    if record.test:
        lines.append(
            f"It was tested on {record.test.images:,} images of the same source as its training images and on nothing "
            "else: not on other cameras, noise, blur, cut or covered objects, or images made to mislead it. How far "
            "its confidence can be trusted was not measured."
        )
    else:
        lines.append("No test of these weights is known. Test it on images of your own before you rely on it.")
    if record.train_images is not None and record.train_images < FEW:
        lines.append(f"It was trained on few images ({record.train_images:,}): expect less on any others.")
    moves = built_on(network)
    if "any angle" in moves:
        lines.append(
            "Rotations form a circle, of which the network computes some points on a grid of pixels: where θ = 1, "
            "turned images get nearly the same answer, not exactly."
        )
    elif "rotations" in moves:
        lines.append("Rotations in between those that it is built on are not covered by its construction.")
    if "hue" in moves:
        lines.append(
            "A hue shift is the linear rotation of RGB about the grey axis. That of HSV, which most programs apply, "
            "agrees with it at multiples of 120° only."
        )
    if moves and card.model.level != "full":
        lines.append(
            "A level is what served the training labels. It does not measure how far an image may be moved before a "
            "person would call it something else."
        )
    if card.augmenter.kind in ("fixed", "shared", "image"):
        lines.append(f"One answer costs {card.augmenter.samples} passes through the network.")
    lines.append(f"Images of another size than {card.size}×{card.size} have to be resized first.")
    return "\n".join(f"- {line}" for line in lines)


def _use(card: Card, source: str) -> str:
    return f"""`pip install 'vpgcnn[hub]'`, then
```python
import torch
from vpgcnn.hub import Pretrained

net = Pretrained.from_pretrained({json.dumps(source)})
images = torch.rand(4, {card.channels}, {card.size}, {card.size})  # yours: numbers in [0, 1], or bytes
answer = net.classify(images)
print(answer.names, answer.probabilities.max(dim=1).values, answer.theta)
```
`net(standardised_images)` gives logits and the divergence, as in training. The commands `vpgcnn evaluate`, `predict`,
`diagnose`, `serve` and `export` take `model.safetensors`, or the folder that it is in."""


def _plain(text: str) -> str:
    """Text that Markdown leaves as it is, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", " ".join(text.split()))
