"""The search for an augmentation policy: AdaAug's first phase.

The training images are split once. A classifier learns on the larger part, augmented by the current policy. The
policy learns on the smaller part, over and over, from the classifier's loss on augmented images. Neither sees the
validation images, by which the later run is selected.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.lab.config_io import to_json
from vpgcnn.lab.data import Dataset
from vpgcnn.lab.networks import Policy, Prediction, moving_group
from vpgcnn.lab.training.batches import Batches
from vpgcnn.lab.training.checkpoint import (
    Card,
    load_weights,
    optimiser_tensors,
    part_of,
    read_tensors,
    restore_optimiser,
    save_tensors,
)
from vpgcnn.lab.training.config import OptimiserConfig, TrainConfig
from vpgcnn.lab.training.optimisers import make_optimiser, parts_of, rate_factor, settings_of
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.lab.training.seeds import generator, seed_of
from vpgcnn.levels import set_progress
from vpgcnn.objective import Elbo, dual_step, penalty

__all__ = ["load_policy", "make_policy", "search_policy"]


def make_policy(card: Card) -> Policy:
    """A policy before the search, with a classifier that it does not share."""
    network = card.build()
    group = moving_group(network, card.augmenter, card.channels)
    return Policy(network, group, len(card.classes), card.augmenter).eval()


def load_policy(path: Path, card: Card, data: str, device: torch.device) -> tuple[Policy, dict[str, Any]]:
    """Load the policy that a search found.

    Args:
        path: The file that `search_policy` wrote.
        card: The network of the run.
        data: Fingerprint of the data; a policy for other data is refused.
        device: Where to put it.

    Returns:
        The policy, and the steps and seconds that the search took.
    """
    tensors, metadata = read_tensors(path)
    if metadata.get("policy") != to_json(card.augmenter):
        raise UserError(f"{path} holds no policy for these settings of the augmenter: remove it to search again")
    if metadata["data"] != data:
        raise UserError(f"{path} is the policy for other data: remove it to search again")
    policy = make_policy(card)
    load_weights(policy, tensors, path)
    return policy.to(device).requires_grad_(False), {"step": metadata["step"], "elapsed": metadata["elapsed"]}


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
    """Search for a policy and write it to policy.safetensors in the folder.

    Args:
        config: Settings of the run.
        data: The data; only training images are used.
        card: The network of the run.
        folder: The run's folder. The state is kept there in search.safetensors, from which the next call continues.
        device: Where to compute.
        progress: Where messages go.
        stopping: Asked after each step whether to stop.
        prior: `(classes,)`, added to the logits of both losses, as in training.
        write: Whether this process writes the files.

    Returns:
        False if it was stopped before the end.
    """
    policy_file, state_file = folder / "policy.safetensors", folder / "search.safetensors"
    if policy_file.exists():
        return True
    search = _Search(config, data, card, device, prior)
    search.restore(state_file)
    progress.begin("search for a policy", search.total, search.step)
    saved = time.monotonic()
    while search.step < search.total:
        progress.advance(1, search.advance())
        if search.step % search.batches.per_epoch == 0:
            progress.message(search.summary())
        stop = stopping()
        if write and (stop or time.monotonic() - saved > config.save_seconds):
            search.save(state_file)
            saved = time.monotonic()
        if stop:
            return False
    if write:
        metadata: dict[str, Any] = {"policy": to_json(card.augmenter), "data": search.fingerprint}
        metadata |= {"step": search.step, "elapsed": search.elapsed}
        save_tensors(policy_file, dict(search.policy.state_dict()), metadata)
        state_file.unlink(missing_ok=True)
    return True


class _Search:
    """Trains classifier and policy, one step of each in turn."""

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
        torch.manual_seed(seed_of(config.seed, "weights"))
        self.policy = make_policy(card).to(device)
        self.parts = parts_of(self.policy.network) | {"advice": list(self.policy.advice.named_parameters())}
        self.settings = settings_of(config) | {"advice": OptimiserConfig("adam", settings.lr, 0.0)}
        self.optimisers = {
            part: make_optimiser([parameter for _, parameter in members], self.settings[part])
            for part, members in self.parts.items()
        }
        self.latest = [0.0] * 4  # nll, nll on the held-out part, chance and reach of the advice

    def advance(self) -> str:
        """Take one step of each; returns a note for the progress bar."""
        start = time.monotonic()
        config, policy, network = self.config, self.policy, self.policy.network
        for part, optimiser in self.optimisers.items():
            for group in optimiser.param_groups:
                factor = rate_factor(self.step, self.total, config.warmup, config.final)
                group["lr"] = self.settings[part].lr * factor
        torch.manual_seed(seed_of(config.seed, "search step", self.step))
        done = self.step / max(1, self.total - 1)
        set_progress(network, done)
        images, labels = self.batches.at(self.step, self.device)
        images = policy(images, labels, torch.rand(len(images), 3).to(images))
        network.train()
        learning = Elbo.of(network(images), labels, self.prior)
        loss = config.objective.loss(learning, done) + penalty(network)
        self._descend([part for part in self.parts if part != "advice"], loss)
        dual_step(network)
        policy.eval()
        images, labels = self.judging.at(self.step, self.device)
        logits = policy.mixed(images, labels, torch.rand(len(images), 2).to(images))
        judged = Elbo.of(Prediction(logits, {}), labels, self.prior).nll
        self._descend(["advice"], judged)
        advice = policy.advise(images, labels)
        numbers = torch.stack([learning.nll, judged, advice.chance.mean(), advice.reach.mean()]).detach()
        if not bool(numbers.isfinite().all()):
            raise UserError(f"the search is not finite after step {self.step + 1}: lower optimiser.lr or augmenter.lr")
        self.step, self.latest = self.step + 1, numbers.tolist()
        self.elapsed += time.monotonic() - start
        return f"nll {self.latest[0]:.3f}, held out {self.latest[1]:.3f}"

    def _descend(self, parts: list[str], loss: Tensor) -> None:
        """Take an optimiser step of these parts only."""
        members = [parameter for part in parts for _, parameter in self.parts[part]]
        for parameter, gradient in zip(members, torch.autograd.grad(loss, members, allow_unused=True), strict=True):
            parameter.grad = gradient
        if self.config.clip > 0:
            nn.utils.clip_grad_norm_(members, self.config.clip)
        for part in parts:
            self.optimisers[part].step()
            self.optimisers[part].zero_grad()

    def summary(self) -> str:
        """One line about the epoch that just ended."""
        nll, judged, chance, reach = self.latest
        epoch = self.step // self.batches.per_epoch
        return (
            f"search {epoch:>3} of {self.config.augmenter.search}: nll {nll:.3f}, on the held-out part {judged:.3f}; "
            f"images are moved with probability {chance:.2f}, by ± {180 * reach:.0f}°"
        )

    def save(self, path: Path) -> None:
        tensors = {f"policy/{key}": value for key, value in self.policy.state_dict().items()}
        for part, optimiser in self.optimisers.items():
            names = [name for name, _ in self.parts[part]]
            tensors |= {f"{part}/{name}": value for name, value in optimiser_tensors(optimiser, names).items()}
        metadata = {"step": self.step, "elapsed": self.elapsed, "data": self.fingerprint, "latest": self.latest}
        save_tensors(path, tensors, metadata)

    def restore(self, path: Path) -> None:
        if not path.exists():
            return
        tensors, metadata = read_tensors(path)
        if not {"step", "elapsed", "data", "latest"} <= set(metadata):
            raise UserError(f"{path} is not the state of a search: remove it to start again")
        if metadata["data"] != self.fingerprint:
            raise UserError(f"{path} is the state of a search on other data: remove it to start again")
        load_weights(self.policy, part_of(tensors, "policy"), path)
        for part, optimiser in self.optimisers.items():
            restore_optimiser(optimiser, [name for name, _ in self.parts[part]], part_of(tensors, part))
        self.step, self.elapsed, self.latest = (metadata[key] for key in ("step", "elapsed", "latest"))
