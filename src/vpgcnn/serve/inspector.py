"""What the page asks for: samples with their θ, and one image at every place of the circle, in one forward pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from vpgcnn.analysis import Kind, apart, marginals, moves_of, observe, read_theta
from vpgcnn.data import Dataset, load
from vpgcnn.errors import UserError
from vpgcnn.levels import Variational, layer_of
from vpgcnn.models import elements_of, symmetry
from vpgcnn.training.checkpoint import Card, load_model
from vpgcnn.training.config import TrainConfig
from vpgcnn.training.record import read_settings
from vpgcnn.training.run import chosen_weights

__all__ = ["Inspector", "Network", "Sample", "Seen", "levels_of", "load_samples", "open_networks"]

Order = Literal["narrow", "wide", "as they are"]
SAMPLES = 600
"""Test images that are kept for the gallery, at most."""


@dataclass(frozen=True)
class Network:
    """A trained network, ready. kind: what the page moves."""

    name: str
    model: nn.Module
    card: Card
    kind: Kind
    about: str


@dataclass(frozen=True)
class Sample:
    """A test image. theta: the mean over layers of the first network that has levels, None without any."""

    number: int
    label: int
    pixels: Tensor
    theta: float | None


@dataclass(frozen=True)
class Seen:
    """What one network says of one image.

    chances: `(classes,)` at the angle. curve: `(steps, classes)` at even angles from 0 on. theta: layer → share of the
    circle, at the angle. weights: layer → of every element.
    """

    network: Network
    chances: Tensor
    curve: Tensor
    theta: dict[str, float]
    weights: dict[str, list[float]]


def open_networks(paths: Sequence[Path], device: torch.device) -> tuple[list[Network], TrainConfig | None]:
    """The networks of runs, which have to see the same images and classes; and the settings of the first run."""
    networks: list[Network] = []
    config = None
    for path in paths:
        weights = chosen_weights(path)
        model, card = load_model(weights)
        if not networks:
            config = read_settings(weights)
        name = path.name if path.is_dir() else path.stem
        while any(network.name == name for network in networks):
            name += "′"
        known = {"variational": "a level for each image", "learned": "one level for all images"}
        about = known.get(card.model.level, "full group")
        found = symmetry(card.model)
        if elements_of(card.model) == (1, 1):
            about = "ordinary network"
        # An ordinary network is looked at as the others are; rotations of a product come first.
        kind: Kind = "hue" if found == "hue" else "rotation"
        if found == "none" and networks:
            kind = networks[0].kind
        networks.append(Network(name, model.to(device).eval(), card, kind, about))
    first = networks[0]
    for other in networks[1:]:
        for what, one, two in (
            ("classes", first.card.classes, other.card.classes),
            ("image size", first.card.size, other.card.size),
            ("channels", first.card.channels, other.card.channels),
            ("symmetry", first.kind, other.kind),
        ):
            if one != two:
                raise UserError(f"{first.name} and {other.name} cannot be compared: their {what} differ")
    return networks, config


@dataclass
class Inspector:
    """Networks that see the same images, and some test images. Safe to use from several threads."""

    networks: list[Network]
    samples: list[Sample] = field(default_factory=list)
    note: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def card(self) -> Card:
        return self.networks[0].card

    @property
    def kind(self) -> Kind:
        return self.networks[0].kind

    @property
    def device(self) -> torch.device:
        return next(self.networks[0].model.parameters()).device

    def add_samples(self, dataset: Dataset, told: Callable[[int], None] = lambda _: None) -> None:
        """Test images of all classes by turns, with their θ."""
        card = self.card
        if dataset.classes != card.classes or dataset.channels != card.channels or dataset.size != card.size:
            self.note = f"{dataset.name} is not what this network was trained on: there are no samples"
            return
        split = dataset.test if len(dataset.test) else dataset.validation
        chosen = _by_turns(split.labels, SAMPLES)
        images, labels = split.images[chosen], split.labels[chosen].tolist()
        theta: list[float | None] = [None] * len(labels)
        owner = next((network for network in self.networks if levels_of(network.model)), None)
        if owner is not None:
            parts = []
            for part in images.split(128):
                found = read_theta(owner.model, part.to(self.device), prepare=owner.card.standardised)
                parts.append(torch.stack(list(apart(owner.model, found).values())).mean(dim=0))
                told(len(part))
            theta = [float(value) for value in torch.cat(parts)]
        pixels = images.float() / 255
        self.samples = [Sample(number, label, pixels[number], theta[number]) for number, label in enumerate(labels)]

    def gallery(self, order: Order, label: int | None, offset: int, limit: int) -> tuple[list[Sample], int]:
        """Samples of a class, or all; narrowest or widest window first. And how many there are."""
        chosen = [sample for sample in self.samples if label is None or sample.label == label]
        if order != "as they are":
            chosen.sort(key=lambda s: (s.theta is None, (s.theta or 0.0) * (1 if order == "narrow" else -1)))
        return chosen[offset : offset + limit], len(chosen)

    def moved(self, pixels: Tensor, degrees: Tensor) -> Tensor:
        """One image `(C, H, W)` in [0, 1] at angles `(A,)`: `(A, C, H, W)`."""
        moves = moves_of(self.kind)
        return moves.move(pixels.expand(len(degrees), -1, -1, -1), degrees * (moves.whole / 360))

    @torch.inference_mode()
    def inspect(self, pixels: Tensor, angle: float, names: Sequence[str], steps: int) -> tuple[Tensor, list[Seen]]:
        """The image `(C, H, W)` at the angle, and what networks say of it there and at `steps` places around."""
        degrees = torch.tensor([angle % 360.0, *(360 * step / steps for step in range(steps))])
        images = self.moved(pixels, degrees)
        found = []
        with self._lock:
            for network in self.networks:
                if network.name in names:
                    seen = observe(network.model, network.card.standardised(255 * images.to(self.device)))
                    chances = seen.logits.double().softmax(dim=1).cpu()
                    levels, shares = apart(network.model, seen.theta), marginals(network.model, seen.weights)
                    theta = {layer: float(values[0]) for layer, values in levels.items()}
                    weights = {layer: values[0].tolist() for layer, values in shares.items()}
                    found.append(Seen(network, chances[0], chances[1:], theta, weights))
        return images[0], found


def load_samples(inspector: Inspector, config: TrainConfig | None, directory: Path | None) -> None:
    """The test images of the run's data, where they are; else a note that says why there are none."""
    if config is None:
        inspector.note = "a weights file does not say where its images are: drop your own"
        return
    try:
        inspector.add_samples(load(config.data, directory or config.data_dir))
    except UserError as error:
        inspector.note = f"no samples: {error}"


def levels_of(model: nn.Module) -> list[str]:
    """The layers with a level for each image."""
    return [layer_of(name) for name, part in model.named_modules() if isinstance(part, Variational)]


def _by_turns(labels: Tensor, count: int) -> Tensor:
    """Places of up to `count` images: the first of every class, the second of every class, …."""
    order = torch.argsort(labels, stable=True)
    rank = torch.zeros_like(labels)
    for label in labels.unique():
        own = order[labels[order] == label]
        rank[own] = torch.arange(len(own))
    return torch.argsort(rank * (int(labels.max()) + 1) + labels)[:count]
