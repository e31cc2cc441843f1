"""Trained networks as folders that the Hugging Face hub understands: weights, card, and a page about them.

    >>> net = Pretrained.of("runs/mnist67-180")
    >>> net.save_pretrained("mnist67-net")                   # model.safetensors, config.json, README.md
    >>> net = Pretrained.from_pretrained("mnist67-net")      # or the name of a repository on the hub
    >>> net.classify(images).names

Nothing in such a folder can run: weights are safetensors, the rest is text.
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

from vpgcnn.analysis import apart, observe, read_theta, read_weights
from vpgcnn.data import Split
from vpgcnn.errors import UserError
from vpgcnn.modelcard import MARK, built_on, card_text
from vpgcnn.models import Prediction
from vpgcnn.serial import from_json, read_json, to_json, write_json
from vpgcnn.training.checkpoint import Card, load_model, read_tensors, save_model
from vpgcnn.training.record import LayerLevel, Record, read_record
from vpgcnn.training.run import PUBLISHED, chosen_weights

try:
    from huggingface_hub import EvalResult, ModelCard, ModelCardData, ModelHubMixin, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError
except ImportError as error:
    raise UserError("vpgcnn.hub needs the package huggingface_hub: pip install 'vpgcnn[hub]'") from error

__all__ = ["FILES", "Classification", "Pretrained", "own_words", "plainly"]

FILES = (PUBLISHED, "config.json", "README.md")
TAGS = ("vpgcnn", "equivariance", "group-convolution")
# Errors of the connection itself: those of httpx, or of requests in older versions of huggingface_hub.
_CONNECTION: type[BaseException] = HfHubHTTPError.__bases__[0]


@dataclass(frozen=True, eq=False)
class Classification:
    """What a network says of images, on the CPU.

    names: the class of each. probabilities: `(N, classes)`. theta: layer → `(N, K)`, see `vpgcnn.analysis.read_theta`.
    """

    names: tuple[str, ...]
    probabilities: Tensor
    theta: dict[str, Tensor]


class Pretrained(nn.Module, ModelHubMixin, library_name="vpgcnn"):
    """A trained network with its card and its record. Equivariant as the network in it is.

    card: what is needed to use it. record: how it came to be, as far as that is known.
    """

    def __init__(self, network: nn.Module, card: Card, record: Record | None = None) -> None:
        super().__init__()
        self.network, self.card, self.record = network, card, record or Record()

    @classmethod
    def of(cls, path: str | Path, *, license: str = "") -> Self:  # noqa: A002
        """From a run's folder, a weights file, or a folder that was saved.

        license: an identifier of the hub, say "mit" or "cc-by-4.0". Paths of this machine are left out of card and
        record: of a dataset of your own, the last part of its name stays.
        """
        weights = chosen_weights(Path(path))
        network, card = load_model(weights)
        record = read_record(weights)
        if license:
            if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
                raise UserError(f"a licence is an identifier such as mit or cc-by-4.0, got {license!r}")
            record = replace(record, license=license)
        return cls(network, *_without_paths(card, record)).eval()

    def forward(self, images: Tensor) -> Prediction:
        """Standardised images `(B, C, H, W)` to logits `(B, classes)` and divergence `(B,)`."""
        prediction: Prediction = self.network(images)
        return prediction

    def classify(self, images: Tensor, *, batch: int = 256) -> Classification:
        """Class, probabilities and levels of images `(N, C, H, W)`: bytes, or numbers in [0, 1].

        The network is left in evaluation mode.
        """
        self._check(images)
        seen = [observe(self.network, self._standardised(part)) for part in images.split(batch)]
        chances = torch.cat([one.logits.float().softmax(dim=1).cpu() for one in seen])
        names = tuple(self.card.classes[int(best)] for best in chances.argmax(dim=1))
        return Classification(
            names, chances, {key: torch.cat([one.theta[key] for one in seen]) for key in seen[0].theta}
        )

    def measure(self, split: Split, what: str) -> None:
        """Write into the record how much of the group each layer uses for images. what: which they are, in words."""
        self._check(split.images)
        # θ of the ranked family has no upper end: there, the share of the elements that are kept is told.
        if getattr(self.card.model, "family", "window") == "ranked":
            weights = read_weights(self.network, split.images, prepare=self._standardised)
            found = {key: torch.special.entr(w).sum(dim=1).exp() / w.shape[1] for key, w in weights.items()}
        else:
            theta = read_theta(self.network, split.images, all_levels=True, prepare=self._standardised)
            found = apart(self.network, theta)
        levels = tuple(
            _summary(layer, values.expand(len(split)), split.labels, self.card.classes)
            for layer, values in found.items()
        )
        self.record = replace(self.record, levels=levels, measured=f"{len(split):,} {what}")

    def _check(self, images: Tensor) -> None:
        card = self.card
        wanted = f"N×{card.channels}×{card.size}×{card.size}"
        if images.dim() != 4 or images.shape[1:] != (card.channels, card.size, card.size) or not len(images):
            raise UserError(f"the network takes images {wanted}, got {'×'.join(map(str, images.shape))}")
        if images.dtype == torch.uint8:
            return
        if not images.is_floating_point():
            raise UserError(f"images are bytes or numbers in [0, 1], got {images.dtype}")
        low, high = float(images.min()), float(images.max())
        if not 0 <= low <= high <= 1:
            raise UserError(f"images that are no bytes have numbers in [0, 1], got {low:g} to {high:g}")

    def _standardised(self, images: Tensor) -> Tensor:
        like = next(self.network.parameters())
        pixels = images.to(like) / 255 if images.dtype == torch.uint8 else images.to(like)
        return (pixels - self.card.mean) / self.card.std

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
        """Write model.safetensors, config.json and README.md: all of them or none.

        A network that was saved there before is replaced; a folder with other files of these names is left alone. A
        README of your own, without the line that says it is written anew, stays. With push_to_hub it is then sent.
        """
        target = Path(os.path.abspath(Path(save_directory).expanduser()))  # noqa: PTH100
        _check_target(target)
        stage = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            super().save_pretrained(stage, model_card_kwargs={"source": target.name, **(model_card_kwargs or {})})
            if not target.exists():
                stage.rename(target)
            else:
                for name in FILES:
                    if name != "README.md" or not own_words(target / name):
                        (stage / name).replace(target / name)
        except OSError as error:
            raise UserError(f"cannot write {target}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(stage, ignore_errors=True)
        return self.push_to_hub(repo_id or target.name, **push_to_hub_kwargs) if push_to_hub else None

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Send the three files to a repository on the hub, which is made if it is not there. Options: the mixin's."""
        with plainly(f"{repo_id} cannot be pushed"):
            return super().push_to_hub(
                repo_id,
                **{**options, "model_card_kwargs": {"source": repo_id, **(options.get("model_card_kwargs") or {})}},
            )

    def _save_pretrained(self, save_directory: Path) -> None:
        save_model(save_directory / PUBLISHED, self.network, self.card, {"record": to_json(self.record)})
        write_json(save_directory / "config.json", to_json(self.card))

    def generate_model_card(self, *, source: str) -> ModelCard:
        """The page about the network. source: what `from_pretrained` is to be called with there."""
        card, record = self.card, self.record
        named, dataset = source.rsplit("/", 1)[-1], card.dataset or "unknown"
        results = [
            EvalResult(
                "image-classification", dataset, dataset, metric, value, dataset_split="test", metric_name=metric
            )
            for metric, value in (("accuracy", round(record.test.accuracy, 6)), ("nll", round(record.test.nll, 6)))
        ] if record.test else None  # fmt: skip
        moves = built_on(self.network)
        kinds = [kind for kind in ("rotation", "hue") if kind in moves] + [f"level-{card.model.level}"] * bool(moves)
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
        """From a folder that was saved, or from a repository of the hub by its name, "owner/name".

        Ready for evaluation, on the CPU. The options are for the hub.
        """
        name = str(pretrained_model_name_or_path)
        with plainly(f"there is no folder {name}, and it cannot be had from the hub"):
            folder = Path(name).expanduser()
            if folder.is_file():
                raise UserError(f"{name} is a file: Pretrained.of reads weights files")
            if not folder.is_dir():
                fetched = snapshot_download(
                    name, allow_patterns=list(FILES), revision=revision, cache_dir=cache_dir, token=token,
                    force_download=force_download, local_files_only=local_files_only,
                )  # fmt: skip
                folder = Path(fetched)
        missing = [file for file in FILES[:2] if not (folder / file).is_file()]
        if missing:
            hint = (
                ": it is the folder of a run, which Pretrained.of reads"
                if (folder / "last.safetensors").is_file()
                else ""
            )
            raise UserError(f"{name} holds no network that vpgcnn saved (there is no {missing[0]}){hint}")
        card = from_json(Card, read_json(folder / "config.json"), str(folder / "config.json"))
        net = cls.of(folder)
        for part in fields(Card):
            said, true = getattr(card, part.name), getattr(net.card, part.name)
            if said != true:
                raise UserError(f"{name}: config.json and {PUBLISHED} disagree on {part.name}: {said!r}, but {true!r}")
        return net


@contextmanager
def plainly(what: str) -> Iterator[None]:
    """Say in one sentence what the hub, or the way there, did not do."""
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, _CONNECTION) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{what}: {reason}") from error


def _check_target(target: Path) -> None:
    """Make sure that nothing but a network that was saved before is written over."""
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file, not a folder to save in")
    try:
        if (target / "config.json").exists():
            from_json(Card, read_json(target / "config.json"))
        if (target / PUBLISHED).exists() and "record" not in read_tensors(target / PUBLISHED)[1]:
            raise UserError("it has no record")
    except UserError as error:
        raise UserError(
            f"{target} holds a config.json or a {PUBLISHED} that vpgcnn did not save there: choose another folder"
        ) from error


def own_words(readme: Path) -> bool:
    """Whether a page is a user's own, who took the mark out."""
    return readme.exists() and MARK not in readme.read_text(encoding="utf-8", errors="replace")


def _without_paths(card: Card, record: Record) -> tuple[Card, Record]:
    """Card and record, to be published: without the folders of this machine."""
    name = re.split(r"[/\\]", card.dataset.rstrip("/\\"))[-1]
    # Notes end with where the data were read: "…, from /data/mnist".
    told = (note.replace(card.dataset, name) if name else note for note in record.notes)
    notes = tuple(re.sub(r",? from (?=\S*[/\\]).*$", "", note) for note in told)
    config = record.config
    if config is not None:
        own = re.split(r"[/\\]", config.data.name.rstrip("/\\"))[-1]
        config = replace(config, data=replace(config.data, name=own), data_dir=None, start=None)
    return replace(card, dataset=name), replace(record, notes=notes, config=config)


def _summary(layer: str, values: Tensor, labels: Tensor, classes: tuple[str, ...]) -> LayerLevel:
    """values: `(N,)`, labels: `(N,)`."""
    values = values.double()
    measured = values.mean(), values.std(correction=0), values.min(), values.max()
    mean, std, low, high = (round(float(value), 6) for value in measured)
    if std == 0:
        return LayerLevel(layer, mean, std, low, high)
    means = {int(label): round(float(values[labels == label].mean()), 6) for label in labels.unique()}
    narrow, wide = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
    return LayerLevel(layer, mean, std, low, high, classes[narrow], means[narrow], classes[wide], means[wide])
