"""The search for a policy of augmentation: AdaAug's first phase.

The training images are parted once. A classifier learns on the larger part, changed as the policy so far says; the
policy learns on the other part, all of which is drawn again and again, from the classifier's loss on changed images.
Neither sees the validation images, by which the later run is selected.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn.data import Dataset
from vpgcnn.errors import UserError
from vpgcnn.levels import tell_progress
from vpgcnn.models import Policy, Prediction, moving_group
from vpgcnn.objective import Elbo, KlSchedule
from vpgcnn.serial import to_json
from vpgcnn.training.batches import Batches
from vpgcnn.training.checkpoint import (
    Card,
    load_weights,
    optimiser_tensors,
    part_of,
    read_tensors,
    restore_optimiser,
    save_tensors,
)
from vpgcnn.training.config import OptimiserConfig, TrainConfig
from vpgcnn.training.optimisers import make_optimiser, parts_of, rate_factor
from vpgcnn.training.progress import Quiet
from vpgcnn.training.seeds import generator, seed_of

__all__ = ["load_policy", "make_policy", "search_policy"]


def make_policy(card: Card) -> Policy:
    """A policy that has learned nothing yet, with a classifier of its own."""
    network = card.build()
    group = moving_group(network, card.augmenter, card.channels)
    return Policy(network, group, len(card.classes), card.augmenter, background=-card.mean / card.std).eval()


def load_policy(path: Path, card: Card, data: str, device: torch.device) -> tuple[Policy, dict[str, Any]]:
    """The policy that a search has found on these data, and the steps and seconds that the search took."""
    tensors, said = read_tensors(path)
    if said.get("policy") != to_json(card.augmenter):
        raise UserError(f"{path} holds no policy that was searched for with these settings")
    if said["data"] != data:
        raise UserError(f"{path} was searched for with other data than are there now")
    policy = make_policy(card)
    load_weights(policy, tensors, path)
    return policy.to(device).requires_grad_(False), {"step": said["step"], "elapsed": said["elapsed"]}


def search_policy(
    config: TrainConfig,
    data: Dataset,
    card: Card,
    folder: Path,
    device: torch.device,
    *,
    progress: Quiet,
    stopping: Callable[[], bool],
    prior: Tensor | None = None,
    write: bool = True,
) -> bool:
    """Search, and write policy.safetensors into the folder; False if asked to stop before the end.

    The state is kept in search.safetensors, from which the next call goes on. prior: added to the logits of both
    losses, as in training. write: whether this process is the one that writes.
    """
    found, kept = folder / "policy.safetensors", folder / "search.safetensors"
    if found.exists():
        return True
    search = _Search(config, data, card, device, prior)
    search.restore(kept)
    progress.begin("search for a policy", search.total, search.step)
    saved = time.monotonic()
    while search.step < search.total:
        progress.advance(1, search.advance())
        if search.step % search.batches.per_epoch == 0:
            progress.say(search.said())
        stop = stopping()
        if write and (stop or time.monotonic() - saved > config.save_seconds):
            search.save(kept)
            saved = time.monotonic()
        if stop:
            return False
    if write:
        said: dict[str, Any] = {"policy": to_json(card.augmenter), "data": search.fingerprint}
        said |= {"step": search.step, "elapsed": search.elapsed}
        save_tensors(found, dict(search.policy.state_dict()), said)
        kept.unlink(missing_ok=True)
    return True


class _Search:
    """Classifier and policy, a step of each in turn."""

    def __init__(
        self, config: TrainConfig, data: Dataset, card: Card, device: torch.device, prior: Tensor | None = None
    ) -> None:
        settings = config.augmenter
        self.config, self.device, self.prior, self.fingerprint = config, device, prior, data.fingerprint()
        order = torch.randperm(len(data.train), generator=generator(config.seed, "search part"))
        count = max(1, round(settings.held * len(order)))
        held, rest = data.train[order[:count]], data.train[order[count:]]
        self.batches = Batches(rest, config, card, size=config.batch_size, purpose="search ")
        self.judging = Batches(held, config, card, size=min(config.batch_size, count), purpose="judge ")
        self.total, self.step, self.elapsed = self.batches.per_epoch * settings.search, 0, 0.0
        self.schedule = KlSchedule(**{part.name: getattr(config.objective, part.name) for part in fields(KlSchedule)})
        torch.manual_seed(seed_of(config.seed, "weights"))
        self.policy = make_policy(card).to(device)
        self.parts = parts_of(self.policy.network) | {"advice": list(self.policy.advice.named_parameters())}
        self.settings = {"network": config.network, "levels": config.levels}
        self.settings["advice"] = OptimiserConfig("adam", settings.rate, 0.0)
        self.optimisers = {
            part: make_optimiser([parameter for _, parameter in members], self.settings[part])
            for part, members in self.parts.items()
        }
        self.seen = [0.0] * 4

    def advance(self) -> str:
        """One step of each; returns what a bar shows."""
        start = time.monotonic()
        config, policy, network = self.config, self.policy, self.policy.network
        for part, optimiser in self.optimisers.items():
            for group in optimiser.param_groups:
                factor = rate_factor(self.step, self.total, config.warmup, config.final)
                group["lr"] = self.settings[part].rate * factor
        torch.manual_seed(seed_of(config.seed, "search step", self.step))
        done = self.step / max(1, self.total - 1)
        tell_progress(network, done)
        images, labels = self.batches.at(self.step, self.device)
        images = policy(images, labels, torch.rand(len(images), 3).to(images))
        network.train()
        learning = Elbo.of(network(images), labels, self.prior)
        weight = self.schedule.at(done) if config.objective.mode == "schedule" else config.objective.start
        self._descend([part for part in self.parts if part != "advice"], learning.total(weight))
        policy.eval()
        images, labels = self.judging.at(self.step, self.device)
        logits = policy.mixed(images, labels, torch.rand(len(images), 2).to(images))
        judged = Elbo.of(Prediction(logits, logits.new_zeros(len(logits))), labels, self.prior).nll
        self._descend(["advice"], judged)
        advice = policy.advise(images, labels)
        numbers = torch.stack([learning.nll, judged, advice.chance.mean(), advice.reach.mean()]).detach()
        if not bool(numbers.isfinite().all()):
            raise UserError(
                f"the search is not finite after step {self.step + 1}: lower network.rate or augmenter.rate"
            )
        self.step, self.seen = self.step + 1, numbers.tolist()
        self.elapsed += time.monotonic() - start
        return f"nll {self.seen[0]:.3f}, held out {self.seen[1]:.3f}"

    def _descend(self, parts: list[str], loss: Tensor) -> None:
        """A step of these parts, and of these alone."""
        own = [parameter for part in parts for _, parameter in self.parts[part]]
        for parameter, gradient in zip(own, torch.autograd.grad(loss, own, allow_unused=True), strict=True):
            parameter.grad = gradient
        if self.config.clip > 0:
            nn.utils.clip_grad_norm_(own, self.config.clip)
        for part in parts:
            self.optimisers[part].step()
            self.optimisers[part].zero_grad()

    def said(self) -> str:
        nll, judged, chance, reach = self.seen
        epoch = self.step // self.batches.per_epoch
        return (
            f"search {epoch:>3} of {self.config.augmenter.search}: nll {nll:.3f}, on the part held out {judged:.3f}; "
            f"images are moved with chance {chance:.2f}, by ± {180 * reach:.0f}°"
        )

    def save(self, path: Path) -> None:
        tensors = {f"policy/{key}": value for key, value in self.policy.state_dict().items()}
        for part, optimiser in self.optimisers.items():
            names = [name for name, _ in self.parts[part]]
            tensors |= {f"{part}/{name}": value for name, value in optimiser_tensors(optimiser, names).items()}
        said = {"step": self.step, "elapsed": self.elapsed, "data": self.fingerprint, "seen": self.seen}
        save_tensors(path, tensors, said)

    def restore(self, path: Path) -> None:
        if not path.exists():
            return
        tensors, said = read_tensors(path)
        if not {"step", "elapsed", "data", "seen"} <= set(said):
            raise UserError(f"{path} is no state of a search")
        if said["data"] != self.fingerprint:
            raise UserError(f"{path} was begun with other data than are there now")
        load_weights(self.policy, part_of(tensors, "policy"), path)
        for part, optimiser in self.optimisers.items():
            restore_optimiser(optimiser, [name for name, _ in self.parts[part]], part_of(tensors, part))
        self.step, self.elapsed, self.seen = said["step"], said["elapsed"], said["seen"]
