"""Weights and resume states as safetensors files: tensors with a JSON description and a checksum, and no code."""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import from_json, to_json, write_bytes
from vpgcnn.lab.networks import AugmenterConfig, ModelConfig, PlainConfig, PlainNet, augmented, build
from vpgcnn.lab.specs import text as text_of

__all__ = [
    "Card",
    "checksum",
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
    "unreadable",
]

FORMAT = "vpgcnn-2"


@dataclass(frozen=True)
class Card:
    """Everything that is needed to use a network. It is saved with the weights.

    Args:
        model: The network and its settings.
        classes: Names of the classes.
        channels: Channels of the images, 1 or 3.
        size: Side of the images in pixels.
        mean: Mean of the training images in [0, 1]: one number, or one for each channel.
        std: Their standard deviation, likewise. The network holds both.
        dataset: Name of the training data.
        augmenter: Random moves before the network.
    """

    model: ModelConfig
    classes: tuple[str, ...]
    channels: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dataset: str = ""
    augmenter: AugmenterConfig = field(default_factory=AugmenterConfig)

    def __post_init__(self) -> None:
        sound = self.channels in (1, 3) and self.size >= 1 and len(self.classes) >= 2
        numbers = len(self.mean) == len(self.std) in (1, self.channels) and min(self.std) > 0
        if not (sound and numbers and all(map(math.isfinite, (*self.mean, *self.std)))):
            raise UserError(
                "a card needs 1 or 3 channels, a size of at least 1, at least 2 classes, and a finite mean and "
                f"positive std for all channels or for each, got {self}"
            )

    def build(self) -> nn.Module:
        """The network, with random weights."""
        network = build(self.model, self.channels, len(self.classes), self.mean, self.std)
        return augmented(network, self.augmenter, self.channels)


def save_tensors(path: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write tensors and a JSON description to one file, which is replaced as a whole."""
    whole = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    text = json.dumps(description, ensure_ascii=False)
    metadata = {"format": FORMAT, "description": text, "sha256": checksum(text, whole)}
    write_bytes(path, save(whole, metadata=metadata))


def checksum(description: str, tensors: dict[str, Tensor]) -> str:
    """The SHA-256 of a description and of the names, types, shapes and bytes of tensors, in the order of their names.

    It reveals accidental damage. It does not protect against somebody who changes a file on purpose, because they can
    compute it again.
    """
    digest = hashlib.sha256(json.dumps(description).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().to("cpu").contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file that `save_tensors` wrote.

    Returns:
        The tensors and the description.

    Raises:
        UserError: If the file is missing, damaged, or was not written by this version.
    """
    if not path.is_file():
        raise UserError(f"there is no run and no weights file {path}")
    try:
        with safe_open(path, framework="pt") as stream:
            text = stream.metadata() or {}
            if text.get("format") == "vpgcnn-1":
                raise UserError(f"{path} was written by vpgcnn 0.2, which this version cannot read: train it again")
            if text.get("format") != FORMAT:
                raise UserError(
                    f"{path} was not written by vpgcnn (format {text.get('format')!r}): weights of other programs need "
                    "the function that builds their network, see `vpgcnn convert --help` or `vpgcnn diagnose --help`"
                )
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        _check_sum(path, text, tensors)
        description = json.loads(text["description"])
        if not isinstance(description, dict):
            raise UserError(f"{path} was not written by vpgcnn: its description is {description!r}")
        return tensors, description
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> UserError:
    """What to say of a file that is not a safetensors file, or is damaged.

    Args:
        path: The file.
        error: What reading it raised.
    """
    if _is_pickle(path):
        return UserError(
            f"{path} was written by torch.save, as a pickle, which can run code and is never loaded: where you "
            f"trust it, write the weights with safetensors.torch.save_file(model.state_dict(), "
            f"'{path.stem}.safetensors'), and then see `vpgcnn convert --help`"
        )
    return UserError(f"{path} is damaged or not a safetensors file: {error}")


def _is_pickle(path: Path) -> bool:
    """Whether a file is one of torch.save: an archive around a pickle, or, in its older form, a pickle."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return any(name.endswith("data.pkl") for name in archive.namelist())
        with path.open("rb") as stream:
            start = stream.read(9)
        return start[:1] == b"\x80" and start[8:] != b"{"  # pickles from protocol 2 on, and not a safetensors header
    except (OSError, zipfile.BadZipFile):
        return False


def _check_sum(path: Path, metadata: dict[str, str], tensors: dict[str, Tensor]) -> None:
    """Compare a file with its checksum. Files of earlier versions have none: that is a warning."""
    unknown = sorted(set(metadata) - {"format", "description", "sha256"})
    if unknown:  # perhaps a damaged "sha256"
        raise UserError(f"{path} is damaged: its metadata have an unknown entry {unknown[0]!r}")
    if "sha256" not in metadata:
        message = f"{path} has no checksum (an earlier version wrote it), so damage to it would not be noticed"
        warnings.warn(message, stacklevel=2)
    elif metadata["sha256"] != checksum(metadata["description"], tensors):
        raise UserError(
            f"{path} is damaged: its content does not match its checksum; use another copy, or write it again"
        )


def save_model(path: Path, model: nn.Module, card: Card, extra: dict[str, Any]) -> None:
    """Write a network's weights with its card.

    Args:
        path: The file.
        model: The network.
        card: Its card.
        extra: More for the description, such as the epoch.
    """
    save_tensors(path, dict(model.state_dict()), {"card": to_json(card), **extra})


def load_model(path: Path) -> tuple[nn.Module, Card]:
    """Load a network from a weights file, in evaluation mode, with its card."""
    tensors, card = _read_card(path)
    model = card.build()
    load_weights(model, tensors, path)
    return model.eval(), card


def _read_card(path: Path) -> tuple[dict[str, Tensor], Card]:
    """The weights and the card in a file."""
    tensors, description = read_tensors(path)
    if "card" not in description:
        raise UserError(f"{path} holds a state to resume from, not a network")
    card = from_json(Card, description["card"], f"the card in {path}")
    return tensors, card


def read_card(path: Path) -> Card:
    """The card in a weights file."""
    return _read_card(path)[1]


def started(card: Card, path: Path) -> tuple[nn.Module, str]:
    """Build the network of a card with the weights of a trained network.

    The trained network is the same network, or the ordinary one that this card converts. If its classes differ, the
    last linear layer starts with random weights.

    Args:
        card: The network to build.
        path: Weights file of the trained network.

    Returns:
        The network, and a sentence about where its weights come from.
    """
    tensors, theirs = _read_card(path)
    if theirs.channels != card.channels:
        raise UserError(f"{path} is for images of {theirs.channels} channels, but these have {card.channels}")
    if theirs.augmenter != card.augmenter:
        raise UserError(f"{path} has another augmenter ({theirs.augmenter.kind}) than this run ({card.augmenter.kind})")
    same = theirs.classes == card.classes
    if theirs.model == card.model:
        if not same and isinstance(card.model, PlainConfig) and card.model.factory:
            raise UserError(
                f"{path} has the classes {_first(theirs.classes)}, but the images have {_first(card.classes)}: "
                "names and order must be the same (folders are in alphabetical order), see `vpgcnn convert --classes`"
            )
        model = card.build()
        random = model.state_dict()
        fresh = [] if same else [name for name in random if HEAD.search(name) and not name.startswith("ranges.")]
        fresh += [name for name in random if name.endswith(".dial")]  # training starts from the windows as learned
        load_weights(model, {**tensors, **{name: random[name] for name in fresh}}, path)
        return model, f"starting from {path}{'' if same else ': the last layer is new, for other classes'}"
    converted = _of(theirs.model, card.model)
    if converted is None:
        raise UserError(f"{path} is a different network from this run's: {_difference(theirs.model, card.model)}")
    if not same:
        raise UserError(f"{path} has other classes: train it on these first, then convert it")
    model, before = card.build(), theirs.build()
    load_weights(before, tensors, path)
    assert isinstance(model, PlainNet)
    assert isinstance(before, PlainNet)
    model.network = model.converted(before.network)
    return model, f"starting from {path}, converted to {text_of(model.group)}"


HEAD = re.compile(r"(^|\.)(head|fc)\.(weight|bias)$")
"""The last linear layer of any network."""


def load_foreign(path: Path, card: Card) -> nn.Module:
    """Load an ordinary network from weights that vpgcnn did not write.

    Args:
        path: A safetensors file with torchvision's names.
        card: Describes the network.
    """
    model = card.build()
    if not isinstance(model, PlainNet):
        raise UserError(
            f"weights that vpgcnn did not write must be those of a plain network, got a card of {card.model.name!r}"
        )
    if not path.is_file():
        raise UserError(f"there is no weights file {path}")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise unreadable(path, error) from error
    load_weights(model.network, tensors, path)
    return model.eval()


def _of(theirs: ModelConfig, ours: ModelConfig) -> PlainConfig | None:
    """Their network, if ours is the same one converted to a group."""
    if not (isinstance(theirs, PlainConfig) and isinstance(ours, PlainConfig)) or theirs.group.order != 1:
        return None
    shape = ("width", "depths", "block", "stem", "factory")
    return theirs if all(getattr(theirs, name) == getattr(ours, name) for name in shape) else None


def _difference(theirs: ModelConfig, ours: ModelConfig) -> str:
    """The first setting in which two configurations differ."""
    for part in fields(ours):
        one, two = getattr(theirs, part.name, None), getattr(ours, part.name)
        if one != two:
            return f"its {part.name} is {one!r}, here it is {two!r}"
    return "they differ"


def load_weights(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Load weights into a network; names and shapes must match, and all values must be finite.

    Args:
        model: The network.
        tensors: Its weights.
        path: The file that they come from, for error messages.
    """
    state = model.state_dict()
    wrong = sorted(set(state) ^ set(tensors)) or [key for key in state if state[key].shape != tensors[key].shape]
    if wrong:
        raise UserError(f"the weights in {path} are not those of this network: they differ at {wrong[0]!r}")
    unsound = [key for key, value in tensors.items() if value.is_floating_point() and not bool(value.isfinite().all())]
    if unsound:
        raise UserError(f"the weights in {path} are not finite: {unsound[0]!r}")
    model.load_state_dict(tensors)


def optimiser_tensors(optimiser: torch.optim.Optimizer, names: list[str]) -> dict[str, Tensor]:
    """The state of an optimiser as named tensors; `names` are those of its parameters, in order."""
    state = optimiser.state_dict()["state"]
    return {
        f"{names[index]}/{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for index, values in state.items()
        for key, value in values.items()
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, names: list[str], tensors: dict[str, Tensor]) -> None:
    """Load the state that `optimiser_tensors` returned."""
    whole = optimiser.state_dict()
    whole["state"] = {
        index: {key.rsplit("/", 1)[1]: value for key, value in tensors.items() if key.rsplit("/", 1)[0] == name}
        for index, name in enumerate(names)
    }
    whole["state"] = {index: values for index, values in whole["state"].items() if values}
    optimiser.load_state_dict(whole)


def part_of(tensors: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    """The tensors whose names start with "part/", without that prefix."""
    return {key.removeprefix(f"{part}/"): value for key, value in tensors.items() if key.startswith(f"{part}/")}


def _first(classes: Sequence[str]) -> str:
    """The first three classes as text."""
    return ", ".join(classes[:3]) + (", …" if len(classes) > 3 else "")
