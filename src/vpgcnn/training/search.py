"""The search for a policy of augmentation: AdaAug's first phase.

The training images are parted once. A classifier learns on the larger part, changed as the policy so far says; the
policy learns on the other part, all of which is drawn again and again, from the classifier's loss on changed images.
Neither sees the validation images, by which the later run is selected.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vpgcnn.data import Dataset
from vpgcnn.errors import UserError
from vpgcnn.levels import tell_progress
from vpgcnn.models import Policy, moving_group
from vpgcnn.objective import Elbo
from vpgcnn.training.batches import Batches
from vpgcnn.training.checkpoint import (
    Card,
    load_weights,
    optimiser_tensors,
    read_tensors,
    restore_optimiser,
    save_tensors,
)
from vpgcnn.training.config import TrainConfig
from vpgcnn.training.optimisers import make_optimiser, rate_factor
from vpgcnn.training.progress import Quiet
from vpgcnn.training.seeds import generator, seed_of
from vpgcnn.training.serial import to_json

__all__ = ["load_policy", "make_policy", "search_policy"]


def make_policy(card: Card) -> Policy:
    """A policy that has learned nothing yet, with a classifier of its own."""
    network = card.build()
    group = moving_group(network, card.augmenter, card.channels)
    return Policy(network, group, len(card.classes), card.augmenter, background=-card.mean / card.std).eval()


def load_policy(path: Path, card: Card, device: torch.device) -> Policy:
    """The policy that a search has found."""
    tensors, description = read_tensors(path)
    if description.get("policy") != to_json(card.augmenter):
        raise UserError(f"{path} holds no policy that was searched for with these settings")
    policy = make_policy(card)
    load_weights(policy, tensors, path)
    return policy.to(device).requires_grad_(False)


def search_policy(
    config: TrainConfig,
    data: Dataset,
    card: Card,
    folder: Path,
    device: torch.device,
    *,
    progress: Quiet,
    stopping: Callable[[], bool],
) -> Path | None:
    """Search, and write policy.safetensors into the folder; None if asked to stop before the end.

    The state is kept in search.safetensors, from which the next call goes on.
    """
    found, kept = folder / "policy.safetensors", folder / "search.safetensors"
    if found.exists():
        return found
    search = _Search(config, data, card, device)
    search.restore(kept)
    progress.begin("search for a policy", search.total, search.step)
    saved = time.monotonic()
    while search.step < search.total:
        progress.advance(1, search.advance())
        if search.step % search.batches.per_epoch == 0:
            progress.say(search.said())
        if stopping() or time.monotonic() - saved > config.save_seconds:
            search.save(kept)
            saved = time.monotonic()
        if stopping():
            return None
    save_tensors(found, dict(search.policy.state_dict()), {"policy": to_json(card.augmenter)})
    kept.unlink(missing_ok=True)
    return found


class _Search:
    """Classifier and policy, a step of each in turn."""

    def __init__(self, config: TrainConfig, data: Dataset, card: Card, device: torch.device) -> None:
        settings = config.augmenter
        if settings.search < 1 or not 0 < settings.held < 1:
            raise UserError(
                f"augmenter: search is at least 1 epoch and held a share of 1, got {settings.search}, {settings.held}"
            )
        if not 0 <= settings.deviation <= 1:
            raise UserError(f"augmenter: deviation is a share of 180°, from 0 to 1, got {settings.deviation}")
        self.config, self.device, self.fingerprint = config, device, data.fingerprint()
        order = torch.randperm(len(data.train), generator=generator(config.seed, "search part"))
        count = max(1, round(settings.held * len(order)))
        held, rest = data.train[order[:count]], data.train[order[count:]]
        if len(rest) < config.batch_size:
            raise UserError(
                f"the search leaves {len(rest)} training images, fewer than a batch of {config.batch_size}: lower "
                "augmenter.held or batch_size"
            )
        self.batches = Batches(rest, config, card, size=config.batch_size, purpose="search ")
        self.judging = Batches(held, config, card, size=min(config.batch_size, count), purpose="judge ")
        self.total, self.step = self.batches.per_epoch * settings.search, 0
        torch.manual_seed(seed_of(config.seed, "weights"))
        self.policy = make_policy(card).to(device)
        self.parts = {
            "network": list(self.policy.network.named_parameters()),
            "advice": list(self.policy.advice.named_parameters()),
        }
        chosen = {"network": config.network, "advice": config.levels}
        self.optimisers = {key: make_optimiser([p for _, p in own], chosen[key]) for key, own in self.parts.items()}
        self.seen = [0.0] * 4

    def advance(self) -> str:
        """One step of each; returns what a bar shows."""
        config, policy, network = self.config, self.policy, self.policy.network
        factor = rate_factor(self.step, self.total, config.warmup, config.final)
        for key, rate in (("network", config.network.rate), ("advice", config.levels.rate)):
            for part in self.optimisers[key].param_groups:
                part["lr"] = rate * factor
        torch.manual_seed(seed_of(config.seed, "search step", self.step))
        tell_progress(network, self.step / max(1, self.total - 1))
        images, labels = self.batches.at(self.step, self.device)
        images = policy(images, labels, torch.rand(len(images), 3).to(images))
        network.train()
        learning = Elbo.of(network(images), labels)
        self._descend("network", learning.total(config.objective.start))
        policy.eval()
        images, labels = self.judging.at(self.step, self.device)
        draws = torch.rand(len(images), 2).to(images)
        judged = F.cross_entropy(policy.mixed(images, labels, draws).float(), labels)
        self._descend("advice", judged)
        advice = policy.advise(images, labels)
        numbers = torch.stack([learning.nll, judged, advice.chance.mean(), advice.reach.mean()]).detach()
        if not bool(numbers.isfinite().all()):
            raise UserError(f"the search is not finite after step {self.step + 1}: lower network.rate or levels.rate")
        self.step, self.seen = self.step + 1, numbers.tolist()
        return f"nll {self.seen[0]:.3f}, held out {self.seen[1]:.3f}"

    def _descend(self, key: str, loss: Tensor) -> None:
        own = [parameter for _, parameter in self.parts[key]]
        for parameter, gradient in zip(own, torch.autograd.grad(loss, own, allow_unused=True), strict=True):
            parameter.grad = gradient
        self.optimisers[key].step()
        self.optimisers[key].zero_grad()

    def said(self) -> str:
        nll, judged, chance, reach = self.seen
        epoch = self.step // self.batches.per_epoch
        return (
            f"search {epoch:>3} of {self.config.augmenter.search}: nll {nll:.3f}, on the part held out {judged:.3f}; "
            f"images are moved with chance {chance:.2f}, by ± {180 * reach:.0f}°"
        )

    def save(self, path: Path) -> None:
        tensors = {f"policy/{key}": value for key, value in self.policy.state_dict().items()}
        for key, optimiser in self.optimisers.items():
            names = [name for name, _ in self.parts[key]]
            tensors |= {f"{key}/{name}": value for name, value in optimiser_tensors(optimiser, names).items()}
        save_tensors(path, tensors, {"step": self.step, "data": self.fingerprint, "seen": self.seen})

    def restore(self, path: Path) -> None:
        if not path.exists():
            return
        tensors, said = read_tensors(path)
        self._check(path, said)
        under: dict[str, dict[str, Tensor]] = {"policy": {}, **{key: {} for key in self.optimisers}}
        for name, value in tensors.items():
            part, _, rest = name.partition("/")
            under[part][rest] = value
        load_weights(self.policy, under["policy"], path)
        for key, optimiser in self.optimisers.items():
            restore_optimiser(optimiser, [name for name, _ in self.parts[key]], under[key])
        self.step, self.seen = said["step"], said["seen"]

    def _check(self, path: Path, said: dict[str, Any]) -> None:
        if not {"step", "data", "seen"} <= set(said):
            raise UserError(f"{path} is no state of a search")
        if said["data"] != self.fingerprint:
            raise UserError(f"{path} was begun with other data than are there now")
