"""Weights and resume states as safetensors: plain tensors with a description, nothing that can run."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.models import AugmenterConfig, ModelConfig, PlainConfig, PlainNet, augmented, build
from vpgcnn.serial import from_json, to_json, write_bytes

__all__ = [
    "Card",
    "load_foreign",
    "load_model",
    "load_weights",
    "optimiser_tensors",
    "part_of",
    "read_card",
    "read_tensors",
    "restore_optimiser",
    "save_model",
    "save_tensors",
    "started",
]

FORMAT = "vpgcnn-1"


@dataclass(frozen=True)
class Card:
    """All that is needed to use a network, kept in the file of its weights.

    size: pixels of a side of the images. mean, std: one number each, to standardise pixels in [0, 1].
    """

    model: ModelConfig
    classes: tuple[str, ...]
    channels: int
    size: int
    mean: float
    std: float
    dataset: str = ""
    augmenter: AugmenterConfig = field(default_factory=AugmenterConfig)

    def __post_init__(self) -> None:
        sound = self.channels in (1, 3) and self.size >= 1 and len(self.classes) >= 2
        if not (sound and math.isfinite(self.mean) and math.isfinite(self.std) and self.std > 0):
            raise UserError(f"a card needs channels, size, classes, mean and std that make sense, got {self}")

    def build(self) -> nn.Module:
        """The network, with random weights."""
        network = build(self.model, self.channels, len(self.classes))
        return augmented(network, self.augmenter, self.channels, background=-self.mean / self.std)

    def standardised(self, images: Tensor) -> Tensor:
        """Bytes `(B, C, H, W)` to numbers with mean 0 and deviation 1 over the training images."""
        return (images.to(torch.get_default_dtype()) / 255 - self.mean) / self.std


def save_tensors(path: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Tensors and a description in one file, all or nothing."""
    whole = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    text = {"format": FORMAT, "description": json.dumps(description, ensure_ascii=False)}
    write_bytes(path, save(whole, metadata=text))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save_tensors` wrote; anything else is refused in a sentence."""
    if not path.is_file():
        raise UserError(f"there is no run and no weights file {path}")
    try:
        with safe_open(path, framework="pt") as stream:
            text = stream.metadata() or {}
            if text.get("format") != FORMAT:
                raise UserError(f"{path} was not written by vpgcnn (format {text.get('format')!r})")
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        description = json.loads(text["description"])
        if not isinstance(description, dict):
            raise UserError(f"{path} was not written by vpgcnn: its description is {description!r}")
        return tensors, description
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is damaged or is no safetensors file: {error}") from error


def save_model(path: Path, model: nn.Module, card: Card, extra: dict[str, Any]) -> None:
    """A network's weights with its card. extra: what else is worth knowing, say the epoch."""
    save_tensors(path, dict(model.state_dict()), {"card": to_json(card), **extra})


def load_model(path: Path) -> tuple[nn.Module, Card]:
    """A network ready for evaluation, from a weights file."""
    tensors, card = _read_card(path)
    model = card.build()
    load_weights(model, tensors, path)
    return model.eval(), card


def _read_card(path: Path) -> tuple[dict[str, Tensor], Card]:
    """Weights and the card that is with them."""
    tensors, description = read_tensors(path)
    if "card" not in description:
        raise UserError(f"{path} holds no network, but a state to resume from")
    card = from_json(Card, description["card"], f"the card in {path}")
    # Four names of Flowers102 held a line break before version 0.2.
    return tensors, replace(card, classes=tuple(name.replace("\n", " ") for name in card.classes))


def read_card(path: Path) -> Card:
    """What a weights file says of its network."""
    return _read_card(path)[1]


def started(card: Card, path: Path) -> tuple[nn.Module, str]:
    """The network of a card with the weights of a trained one to begin with, and a sentence on what was taken.

    Theirs is the same network; or an ordinary one that this card's is the conversion of. Where the classes are others,
    the last linear layer begins at random.
    """
    tensors, theirs = _read_card(path)
    if theirs.channels != card.channels:
        raise UserError(f"{path} is for images of {theirs.channels} channels, these have {card.channels}")
    if theirs.augmenter != card.augmenter:
        raise UserError(f"{path} has another augmenter ({theirs.augmenter.kind}) than this run ({card.augmenter.kind})")
    same = theirs.classes == card.classes
    if theirs.model == card.model:
        model = card.build()
        own = model.state_dict()
        fresh = [] if same else [name for name in own if HEAD.search(name)]
        load_weights(model, {**tensors, **{name: own[name] for name in fresh}}, path)
        return model, f"beginning with {path}{'' if same else ': the last layer is new, for other classes'}"
    converted = _of(theirs.model, card.model)
    if converted is None:
        raise UserError(f"{path} is another network than this run's: {_differing(theirs.model, card.model)}")
    if not same:
        raise UserError(f"{path} has other classes: train it on these first, then convert it")
    model, before = card.build(), theirs.build()
    load_weights(before, tensors, path)
    assert isinstance(model, PlainNet)
    assert isinstance(before, PlainNet)
    model.network = model.converted(before.network)
    return model, f"beginning with {path}, converted to {model.group}"


HEAD = re.compile(r"(^|\.)(head|fc)\.(weight|bias)$")
"""The last linear layer of any network."""


def load_foreign(path: Path, card: Card) -> nn.Module:
    """An ordinary network whose weights were not written by vpgcnn: a safetensors file with torchvision's names."""
    model = card.build()
    if not isinstance(model, PlainNet):
        raise UserError(f"weights of others are those of a plain network, got a card of {card.model.name!r}")
    if not path.is_file():
        raise UserError(f"there is no weights file {path}")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or is no safetensors file: {error}") from error
    load_weights(model.network, tensors, path)
    return model.eval()


def _of(theirs: ModelConfig, ours: ModelConfig) -> PlainConfig | None:
    """The ordinary network that ours is the conversion of, if theirs is that."""
    if not (isinstance(theirs, PlainConfig) and isinstance(ours, PlainConfig)) or not theirs.ordinary:
        return None
    shape = ("width", "depths", "block", "stem", "mean", "std")
    return theirs if all(getattr(theirs, name) == getattr(ours, name) for name in shape) else None


def _differing(theirs: ModelConfig, ours: ModelConfig) -> str:
    """Where two configurations differ first."""
    for part in fields(ours):
        one, two = getattr(theirs, part.name, None), getattr(ours, part.name)
        if one != two:
            return f"its {part.name} is {one!r}, here it is {two!r}"
    return "they differ"


def load_weights(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Put weights into a network that has exactly these."""
    own = model.state_dict()
    wrong = sorted(set(own) ^ set(tensors)) or [key for key in own if own[key].shape != tensors[key].shape]
    if wrong:
        raise UserError(f"the weights in {path} are not those of this network: they differ at {wrong[0]!r}")
    unsound = [key for key, value in tensors.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    if unsound:
        raise UserError(f"the weights in {path} are not finite: {unsound[0]!r}")
    model.load_state_dict(tensors)


def optimiser_tensors(optimiser: torch.optim.Optimizer, names: list[str]) -> dict[str, Tensor]:
    """The state of an optimiser whose parameters have these names, as named tensors."""
    state = optimiser.state_dict()["state"]
    return {
        f"{names[index]}/{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for index, values in state.items()
        for key, value in values.items()
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, names: list[str], tensors: dict[str, Tensor]) -> None:
    """Put back what `optimiser_tensors` took out."""
    whole = optimiser.state_dict()
    whole["state"] = {
        index: {key.rsplit("/", 1)[1]: value for key, value in tensors.items() if key.rsplit("/", 1)[0] == name}
        for index, name in enumerate(names)
    }
    whole["state"] = {index: values for index, values in whole["state"].items() if values}
    optimiser.load_state_dict(whole)


def part_of(tensors: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    """Those whose names begin with "part/", without it."""
    return {key.removeprefix(f"{part}/"): value for key, value in tensors.items() if key.startswith(f"{part}/")}
