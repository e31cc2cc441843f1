"""What the page shows: test images with their θ, and one image at every place of the circle, in one forward pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.groups import Group
from vpgcnn.lab.data import Dataset, load
from vpgcnn.lab.networks import elements_of, symmetry
from vpgcnn.lab.training.checkpoint import Card, load_model
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.record import read_settings
from vpgcnn.lab.training.run import chosen_weights
from vpgcnn.lab.training.tuning import Tuning, read_tuning
from vpgcnn.levels import Level, Shared, SharedLevel, VariationalLevel, set_dial
from vpgcnn.measure import Kind, moves_of, read_levels
from vpgcnn.measure.motion import KINDS

__all__ = ["Inspector", "Network", "Sample", "Seen", "dial_of", "levels_of", "load_samples", "open_networks"]

Order = Literal["narrow", "wide", "original"]
SAMPLES = 600
"""The gallery holds at most this many test images."""


@dataclass(frozen=True)
class Network:
    """A trained network.

    Args:
        name: Its name on the page.
        model: The network, in evaluation mode.
        card: Its card.
        kinds: What its group moves; without a group, nothing.
        about: Its kind of level, in a few words.
        tuning: What `vpgcnn tune` found for these weights, if it ran.
    """

    name: str
    model: nn.Module
    card: Card
    kinds: tuple[Kind, ...]
    about: str
    tuning: Tuning | None = None

    @property
    def mirrors(self) -> bool:
        """Whether its group includes mirrors."""
        group = getattr(self.card.model, "group", None)
        return isinstance(group, Group) and any(axis.name == "mirror" for axis in group.axes)

    def promised(self, kind: Kind) -> list[float] | None:
        """The angles in degrees, other than 0°, at which open windows promise the same answer; None: at every angle.

        A group of three hues promises nothing between them. Continuous rotations promise every angle, as far as the
        pixel grid allows.
        """
        group = getattr(self.card.model, "group", None)
        axes = [axis for axis in group.axes if axis.name == kind] if isinstance(group, Group) else []
        if not axes or kind not in self.kinds:
            return []
        order = axes[0].order
        return None if order is None else [360 * step / order for step in range(1, order)]


@dataclass(frozen=True)
class Sample:
    """A test image.

    Args:
        number: Its number in the gallery.
        label: Its class.
        pixels: `(C, H, W)` in [0, 1].
        theta: The mean of θ over the levels that depend on the image, of the first network that has some; None without
            one.
    """

    number: int
    label: int
    pixels: Tensor
    theta: float | None


@dataclass(frozen=True)
class Seen:
    """How one network answers for one image.

    Args:
        network: The network.
        chances: Probabilities at the angle, `(classes,)`.
        curve: Probabilities at evenly spaced angles from 0 on, `(steps, classes)`.
        theta: Layer → share of the circle in use at the angle.
        weights: Layer → weight of every element at the angle.
        shared: The layers whose level is the same for all images.
    """

    network: Network
    chances: Tensor
    curve: Tensor
    theta: dict[str, float]
    weights: dict[str, list[float]]
    shared: frozenset[str] = frozenset()


def open_networks(paths: Sequence[Path], device: torch.device) -> tuple[list[Network], TrainConfig | None]:
    """Load the networks of runs, which must have the same classes and take the same images; their groups may differ.

    Args:
        paths: Folders of runs, or weights files.
        device: Where to put the networks.

    Returns:
        The networks, and the settings of the first run if they are known.
    """
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
        shared = isinstance(card.model.level, Shared)
        about = "one level for all images" if shared else "a level for each image"
        about = "full group" if card.model.level.is_full else about
        found = symmetry(card.model)
        if found == "color":
            raise UserError(
                f"the inspector moves images by rotation or hue, but {name} is on saturation or luminance: use "
                "`vpgcnn evaluate` or `vpgcnn predict`"
            )
        kinds: tuple[Kind, ...] = KINDS if found == "both" else () if found == "none" else (found,)
        if elements_of(card.model) == (1, 1):
            about, kinds = "ordinary network", ()
        elif all(axis.name != "rotation" or axis.count == 1 for axis in card.model.group.axes):
            kinds = tuple(kind for kind in kinds if kind != "rotation")  # only mirrors act on the plane
        networks.append(Network(name, model.to(device).eval(), card, kinds, about, read_tuning(weights)))
    first = networks[0]
    for other in networks[1:]:
        for what, one, two in (
            ("classes", first.card.classes, other.card.classes),
            ("image size", first.card.size, other.card.size),
            ("channels", first.card.channels, other.card.channels),
        ):
            if one != two:
                raise UserError(f"cannot compare {first.name} and {other.name}: they differ in {what}")
    return networks, config


@dataclass
class Inspector:
    """Networks that take the same images, and some test images. Thread-safe."""

    networks: list[Network]
    samples: list[Sample] = field(default_factory=list)
    note: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def card(self) -> Card:
        return self.networks[0].card

    @property
    def kinds(self) -> list[Kind]:
        """What the page can move: what the group of any network moves, that of the first one first.

        Ordinary networks alone can be shown whatever their images allow.
        """
        found = [kind for network in self.networks for kind in network.kinds]
        return list(dict.fromkeys(found)) or [kind for kind in KINDS if kind != "hue" or self.card.channels == 3]

    @property
    def device(self) -> torch.device:
        return next(self.networks[0].model.parameters()).device

    def add_samples(self, dataset: Dataset, advance: Callable[[int], None] = lambda _: None) -> None:
        """Add test images, taking one of each class in turn, and read their θ.

        Args:
            dataset: What the networks were trained on.
            advance: Called with the number of images after each batch.
        """
        card = self.card
        if dataset.classes != card.classes or dataset.channels != card.channels or dataset.size != card.size:
            self.note = f"No test images: {dataset.name} differs from what the network was trained on."
            return
        split = dataset.test if len(dataset.test) else dataset.validation
        chosen = _by_turns(split.labels, SAMPLES)
        images, labels = split.images[chosen], split.labels[chosen].tolist()
        theta: list[float | None] = [None] * len(labels)
        owner = next((network for network in self.networks if levels_of(network.model)), None)
        if owner is not None:
            parts = []
            for part in images.split(128):
                circles = read_levels(owner.model, part).per_image().circles()
                parts.append(torch.stack(list(circles.values())).mean(dim=0))
                advance(len(part))
            theta = [float(value) for value in torch.cat(parts)]
        pixels = images.float() / 255
        self.samples = [Sample(number, label, pixels[number], theta[number]) for number, label in enumerate(labels)]

    def gallery(self, order: Order, label: int | None, offset: int, limit: int) -> tuple[list[Sample], int]:
        """Return a part of the test images.

        Args:
            order: Narrowest or widest window first, or the original order.
            label: Only this class. None: all classes.
            offset: Images to skip.
            limit: Images to return at most.

        Returns:
            The images, and how many there are in total.
        """
        chosen = [sample for sample in self.samples if label is None or sample.label == label]
        if order != "original":
            chosen.sort(key=lambda s: (s.theta is None, (s.theta or 0.0) * (1 if order == "narrow" else -1)))
        return chosen[offset : offset + limit], len(chosen)

    def moved(self, pixels: Tensor, degrees: Tensor, kind: Kind | None = None) -> Tensor:
        """Move an image `(C, H, W)` in [0, 1] to angles `(A,)` in degrees: `(A, C, H, W)`."""
        moves = moves_of(kind or self.kinds[0])
        return moves.move(pixels.expand(len(degrees), -1, -1, -1), degrees * (moves.whole / 360))

    @torch.inference_mode()
    def inspect(
        self,
        pixels: Tensor,
        angle: float,
        names: Sequence[str],
        steps: int,
        windows: float | None = None,
        kind: Kind | None = None,
    ) -> tuple[Tensor, list[Seen]]:
        """Show a moved image to networks.

        Args:
            pixels: `(C, H, W)` in [0, 1].
            angle: In degrees.
            names: Names of the networks.
            steps: Number of places on the curve around the circle.
            windows: How far to open (up to 1) or close (down to −1) the windows of each image; None leaves them as
                they are in the file.
            kind: What to move; by default what the group of the first network moves.

        Returns:
            The moved image `(C, H, W)`, and the answers.
        """
        degrees = torch.tensor([angle % 360.0, *(360 * step / steps for step in range(steps))])
        images = self.moved(pixels, degrees, kind)
        found = []
        with self._lock:
            for network in self.networks:
                if network.name in names:
                    with _dialled(network.model, windows):
                        seen = read_levels(network.model, images)
                    chances = seen.logits.double().softmax(dim=1)
                    own = seen.per_image().circles()
                    theta = {layer: float(values[0]) for layer, values in seen.circles().items()}
                    weights = {layer: values[0].tolist() for layer, values in seen.marginals().items()}
                    shared = frozenset(theta) - frozenset(own)
                    found.append(Seen(network, chances[0], chances[1:], theta, weights, shared))
        return images[0], found


@contextmanager
def _dialled(model: nn.Module, windows: float | None) -> Iterator[None]:
    """Turn the dial of a network that has one; afterwards it is as before."""
    levels = [module for module in model.modules() if isinstance(module, VariationalLevel) and module.has_dial]
    before = [level.dial.clone() for level in levels]
    try:
        if windows is not None and levels:
            set_dial(model, windows)
        yield
    finally:
        for level, dial in zip(levels, before, strict=True):
            level.dial.copy_(dial)


def load_samples(inspector: Inspector, config: TrainConfig | None, directory: Path | None) -> None:
    """Load the test images of a run, or leave a note that says why there are none.

    Args:
        inspector: Gets the images or the note.
        config: Settings of the run, if they are known.
        directory: Directory of the published files.
    """
    if config is None:
        inspector.note = "No test images, because a weights file does not name its data: drop an image on the page."
        return
    try:
        inspector.add_samples(load(config.data, directory or config.data_dir))
    except UserError as error:
        inspector.note = f"No test images: {error}"


def dial_of(model: nn.Module) -> float | None:
    """How far the windows of a network were opened or closed after training; None if they cannot be."""
    dials = (module.dial for module in model.modules() if isinstance(module, VariationalLevel) and module.has_dial)
    return next((float(dial) for dial in dials), None)


def levels_of(model: nn.Module) -> list[str]:
    """Return the names of the layers with a level for each image."""
    return [
        str(getattr(layer, "name", path))
        for path, layer in model.named_modules()
        if isinstance(level := getattr(layer, "level", None), Level)
        and not (level.is_full or isinstance(level, SharedLevel))
    ]


def _by_turns(labels: Tensor, count: int) -> Tensor:
    """Indices of up to `count` images: the first of every class, the second of every class, …"""
    order = torch.argsort(labels, stable=True)
    rank = torch.zeros_like(labels)
    for label in labels.unique():
        members = order[labels[order] == label]
        rank[members] = torch.arange(len(members))
    return torch.argsort(rank * (int(labels.max()) + 1) + labels)[:count]
