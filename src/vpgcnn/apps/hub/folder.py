"""Trained networks as folders in the format of the Hugging Face Hub: weights, configuration and model card.

    >>> net = Pretrained.of("runs/mnist67-180")
    >>> net.save_pretrained("mnist67-net")                   # model.safetensors, config.json, README.md
    >>> net = Pretrained.from_pretrained("mnist67-net")      # or the name of a repository on the Hub
    >>> net.classify(images).names

Such a folder contains no code: the weights are safetensors, the rest is text.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from vpgcnn.apps.hub.card import MARK, built_on, card_text
from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import from_json, read_json, scratch_beside, to_json, write_json
from vpgcnn.lab.data import Split
from vpgcnn.lab.networks import Prediction
from vpgcnn.lab.training.checkpoint import Card, load_model, read_tensors, save_model
from vpgcnn.lab.training.record import LayerLevel, Record, read_record
from vpgcnn.lab.training.run import PUBLISHED, chosen_weights
from vpgcnn.measure import read_levels

try:
    from huggingface_hub import EvalResult, ModelCard, ModelCardData, ModelHubMixin, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError
except ImportError as error:
    raise UserError("vpgcnn.apps.hub needs the package huggingface_hub: pip install 'vpgcnn[hub]'") from error

__all__ = ["FILES", "Classification", "Pretrained", "is_edited", "plainly"]

FILES = (PUBLISHED, "config.json", "README.md")
TAGS = ("vpgcnn", "equivariance", "group-convolution")
# Connection errors come from httpx, or from requests in older versions of huggingface_hub.
_CONNECTION: type[BaseException] = HfHubHTTPError.__bases__[0]


@dataclass(frozen=True, eq=False)
class Classification:
    """A network's answers for N images, on the CPU.

    Args:
        names: The predicted class of each image.
        probabilities: `(N, classes)`.
        theta: Layer → θ, `(N, K)`; see `vpgcnn.measure.read_levels`.
    """

    names: tuple[str, ...]
    probabilities: Tensor
    theta: dict[str, Tensor]


class Pretrained(nn.Module, ModelHubMixin, library_name="vpgcnn"):
    """A trained network with its card and its record. Equivariant as far as the network is.

    Args:
        network: Images in [0, 1] to a `Prediction`.
        card: What is needed to use the network.
        record: How it was trained and tested, as far as that is known.
    """

    def __init__(self, network: nn.Module, card: Card, record: Record | None = None) -> None:
        super().__init__()
        self.network, self.card, self.record = network, card, record or Record()

    @classmethod
    def of(cls, path: str | Path, *, license: str = "") -> Self:  # noqa: A002
        """Load a network from the folder of a run, a weights file or a saved folder.

        Paths of this machine are removed from card and record; of an image folder, only its name remains.

        Args:
            path: A folder or a weights file.
            license: An identifier from the Hub, such as "mit" or "cc-by-4.0".
        """
        weights = chosen_weights(Path(path))
        network, card = load_model(weights)
        record = read_record(weights)
        if license:
            if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
                raise UserError(f"a licence must be an identifier such as mit or cc-by-4.0, got {license!r}")
            record = replace(record, license=license)
        return cls(network, *_without_paths(card, record)).eval()

    def forward(self, images: Tensor) -> Prediction:
        """Images `(B, C, H, W)` in [0, 1] to logits `(B, classes)` and what the levels decided."""
        prediction: Prediction = self.network(images)
        return prediction

    def classify(self, images: Tensor, *, batch: int = 256) -> Classification:
        """Classify images, and read the levels. Leaves the network in evaluation mode.

        Args:
            images: `(N, C, H, W)`, bytes or floating point numbers in [0, 1].
            batch: Images at a time.
        """
        self._check(images)
        seen = read_levels(self.network, self._as_network_takes(images), batch=batch)
        chances = seen.logits.float().softmax(dim=1)
        names = tuple(self.card.classes[int(best)] for best in chances.argmax(dim=1))
        return Classification(names, chances, seen.theta)

    def measure(self, split: Split, what: str) -> None:
        """Record how much of the group each layer uses for these images.

        Args:
            split: Images and labels.
            what: What they are, such as "test images".
        """
        self._check(split.images)
        seen = read_levels(self.network, self._as_network_takes(split.images))
        found = seen.circles()
        levels = tuple(
            _summary(layer, values.expand(len(split)), split.labels, self.card.classes)
            for layer, values in found.items()
        )
        self.record = replace(self.record, levels=levels, measured=f"{len(split):,} {what}")

    def _check(self, images: Tensor) -> None:
        card = self.card
        wanted = f"N×{card.channels}×{card.size}×{card.size}"
        if images.dim() != 4 or images.shape[1:] != (card.channels, card.size, card.size) or not len(images):
            raise UserError(f"the network expects images {wanted}, got {'×'.join(map(str, images.shape))}")
        if images.dtype == torch.uint8:
            return
        if not images.is_floating_point():
            raise UserError(f"images must be uint8 or floating point, got {images.dtype}")
        low, high = float(images.min()), float(images.max())
        if not 0 <= low <= high <= 1:
            raise UserError(f"floating point images must be in [0, 1], got {low:g} to {high:g}")

    def _as_network_takes(self, images: Tensor) -> Tensor:
        return images if images.dtype == torch.uint8 else images.to(next(self.network.parameters()).dtype)

    # ------------------------------------------------------------ saving

    def save_pretrained(  # type: ignore[override]
        self,
        save_directory: str | Path,
        *,
        config: None = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: dict[str, Any] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write model.safetensors, config.json and README.md: all of them, or none if something fails.

        A network saved there before is replaced. Files of these names that vpgcnn did not write are an error. A
        README from which you removed the marker line is kept.

        Args:
            save_directory: Folder to write.
            config: Unused; part of the interface of `ModelHubMixin`.
            repo_id: Repository to push to. None: the name of the folder.
            push_to_hub: Whether to push the files afterwards.
            model_card_kwargs: Arguments for `generate_model_card`.
            push_to_hub_kwargs: Arguments for `push_to_hub`.
        """
        target = Path(os.path.abspath(Path(save_directory).expanduser()))  # noqa: PTH100
        _check_target(target)
        stage = scratch_beside(target)
        try:
            super().save_pretrained(stage, model_card_kwargs={"source": target.name, **(model_card_kwargs or {})})
            if not target.exists():
                stage.rename(target)
            else:
                for name in FILES:
                    if name != "README.md" or not is_edited(target / name):
                        (stage / name).replace(target / name)
        except OSError as error:
            raise UserError(f"cannot write {target}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(stage, ignore_errors=True)
        return self.push_to_hub(repo_id or target.name, **push_to_hub_kwargs) if push_to_hub else None

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Push the three files to a repository on the Hub, and create it if needed.

        Args:
            repo_id: The repository, as "owner/name".
            options: As for `ModelHubMixin.push_to_hub`.
        """
        with plainly(f"cannot push to {repo_id}"):
            return super().push_to_hub(
                repo_id,
                **{**options, "model_card_kwargs": {"source": repo_id, **(options.get("model_card_kwargs") or {})}},
            )

    def _save_pretrained(self, save_directory: Path) -> None:
        save_model(save_directory / PUBLISHED, self.network, self.card, {"record": to_json(self.record)})
        write_json(save_directory / "config.json", to_json(self.card))

    def generate_model_card(self, *, source: str) -> ModelCard:
        """Write the model card.

        Args:
            source: The argument for `from_pretrained` in its example.
        """
        card, record = self.card, self.record
        named, dataset = source.rsplit("/", 1)[-1], card.dataset or "unknown"
        results = [
            EvalResult(
                "image-classification", dataset, dataset, metric, value, dataset_split="test", metric_name=metric
            )
            for metric, value in (("accuracy", round(record.test.accuracy, 6)), ("nll", round(record.test.nll, 6)))
        ] if record.test else None  # fmt: skip
        moves = built_on(self.network)
        kinds = [kind for kind in ("rotation", "hue") if kind in moves] + [
            f"level-{type(card.model.level).__name__.lower()}"
        ] * bool(moves)
        metadata = ModelCardData(
            library_name="vpgcnn",
            pipeline_tag="image-classification",
            license=record.license or None,
            tags=[*TAGS, *kinds],
            model_name=named if results else None,
            eval_results=results,
        )
        return ModelCard(f"---\n{metadata.to_yaml()}\n---\n{card_text(card, record, self.network, source)}")

    # ------------------------------------------------------------ loading

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
    ) -> Self:
        """Load a network, in evaluation mode, on the CPU.

        Args:
            pretrained_model_name_or_path: A saved folder, or a repository on the Hub as "owner/name".
            force_download: Whether to download files again that are in the cache. This and the following are for
                repositories only.
            token: Access token.
            cache_dir: Folder of the cache.
            local_files_only: Whether to use the cache only.
            revision: Branch, tag or commit.
        """
        name = str(pretrained_model_name_or_path)
        with plainly(f"there is no folder {name}, and it cannot be downloaded from the Hub"):
            folder = Path(name).expanduser()
            if folder.is_file():
                raise UserError(f"{name} is a file: use Pretrained.of to read weights files")
            if not folder.is_dir():
                fetched = snapshot_download(
                    name, allow_patterns=list(FILES), revision=revision, cache_dir=cache_dir, token=token,
                    force_download=force_download, local_files_only=local_files_only,
                )  # fmt: skip
                folder = Path(fetched)
        missing = [file for file in FILES[:2] if not (folder / file).is_file()]
        if missing:
            hint = (
                ": it is the folder of a run, use Pretrained.of to read it"
                if (folder / "last.safetensors").is_file()
                else ""
            )
            raise UserError(f"{name} is not a folder that vpgcnn saved (there is no {missing[0]}){hint}")
        card = from_json(Card, read_json(folder / "config.json"), str(folder / "config.json"))
        net = cls.of(folder)
        for part in fields(Card):
            stated, actual = getattr(card, part.name), getattr(net.card, part.name)
            if stated != actual:
                raise UserError(
                    f"{name}: config.json and {PUBLISHED} disagree on {part.name}: {stated!r} and {actual!r}"
                )
        return net


@contextmanager
def plainly(what: str) -> Iterator[None]:
    """Turn errors of the Hub and of the connection into one sentence.

    Args:
        what: What failed: the start of the sentence.
    """
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, _CONNECTION) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{what}: {reason}") from error


def _check_target(target: Path) -> None:
    """Refuse to overwrite anything but a saved network."""
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file, not a folder")
    try:
        if (target / "config.json").exists():
            from_json(Card, read_json(target / "config.json"))
        if (target / PUBLISHED).exists() and "record" not in read_tensors(target / PUBLISHED)[1]:
            raise UserError("it has no record")
    except UserError as error:
        raise UserError(
            f"{target} contains a config.json or {PUBLISHED} that is not part of a saved network: choose another folder"
        ) from error


def is_edited(readme: Path) -> bool:
    """Return whether the user has removed the marker line of a model card, or written another README."""
    return readme.exists() and MARK not in readme.read_text(encoding="utf-8", errors="replace")


def _without_paths(card: Card, record: Record) -> tuple[Card, Record]:
    """Remove the folders of this machine from a card and a record."""
    name = re.split(r"[/\\]", card.dataset.rstrip("/\\"))[-1]
    # Notes end with the place of the data: "…, from /data/mnist".
    renamed = (note.replace(card.dataset, name) if name else note for note in record.notes)
    notes = tuple(re.sub(r",? from (?=\S*[/\\]).*$", "", note) for note in renamed)
    config = record.config
    if config is not None:
        folder = re.split(r"[/\\]", config.data.name.rstrip("/\\"))[-1]
        config = replace(config, data=replace(config.data, name=folder), data_dir=None, start_from=None)
    return replace(card, dataset=name), replace(record, notes=notes, config=config)


def _summary(layer: str, values: Tensor, labels: Tensor, classes: tuple[str, ...]) -> LayerLevel:
    """Summarise θ of a layer, `(N,)`, for images with labels `(N,)`."""
    values = values.double()
    measured = values.mean(), values.std(correction=0), values.min(), values.max()
    mean, std, low, high = (round(float(value), 6) for value in measured)
    if std == 0:
        return LayerLevel(layer, mean, std, low, high)
    means = {int(label): round(float(values[labels == label].mean()), 6) for label in labels.unique()}
    narrow, wide = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    return LayerLevel(layer, mean, std, low, high, classes[narrow], means[narrow], classes[wide], means[wide])
