"""The weights of MetaAugment during training: each step first improves them, then moves images and weighs their losses.

A share of the training images is held out of training to judge the weights by. The validation images, by which the
run is selected, are not used.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vpgcnn.errors import UserError
from vpgcnn.lab.data import Split
from vpgcnn.lab.networks import Weigher, after_virtual_step, moved, moving_group, normalised
from vpgcnn.lab.training.batches import Batches
from vpgcnn.lab.training.checkpoint import Card, load_weights, optimiser_tensors, part_of, restore_optimiser
from vpgcnn.lab.training.checks import held_count
from vpgcnn.lab.training.config import OptimiserConfig, TrainConfig
from vpgcnn.lab.training.optimisers import make_optimiser
from vpgcnn.lab.training.seeds import generator, seed_of

__all__ = ["Reweighing", "held_out"]


def held_out(train: Split, config: TrainConfig) -> tuple[Split, Split]:
    """The training images that are held out, and the rest."""
    order = torch.randperm(len(train), generator=generator(config.seed, "held out"))
    count = held_count(config.augmenter.held, len(order))
    return train[order[:count]], train[order[count:]]


class Reweighing:
    """Moves training images, and learns how much each moved image counts.

    Args:
        network: The classifier, with `features` and `head`.
        held: The images that are held out.
        config: Settings of the run.
        card: The network of the run.
        device: Where to compute.
        prior: `(classes,)`, added to the logits of all losses, as in training.
    """

    def __init__(
        self,
        network: nn.Module,
        held: Split,
        config: TrainConfig,
        card: Card,
        device: torch.device,
        prior: Tensor | None = None,
    ) -> None:
        self.config, self.device, self.prior = config, device, prior
        self.group = moving_group(network, card.augmenter, card.channels)
        width: int = network.head.in_features  # type: ignore[assignment, union-attr]
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed_of(config.seed, "weigher"))
            self.weigher = Weigher(width, card.augmenter.initial).to(device)
        settings = OptimiserConfig("adam", card.augmenter.lr, 0.0)
        self.names = [name for name, _ in self.weigher.named_parameters()]
        self.optimiser = make_optimiser(list(self.weigher.parameters()), settings)
        self.judging = Batches(held, config, card, size=min(config.batch_size, len(held)), purpose="held out ")

    def advance(
        self, network: nn.Module, images: Tensor, labels: Tensor, step: int, factor: float
    ) -> tuple[Tensor, Tensor]:
        """Move images, take a step of the weights, and weigh the moved images.

        Args:
            network: The classifier. Its parameters and statistics are not changed.
            images: `(B, C, H, W)` in [0, 1].
            labels: `(B,)`.
            step: Number of the step, from 0.
            factor: The learning rate as a share of the highest.

        Returns:
            The moved images, and their weights `(B,)`, with a mean of 1.
        """
        draws = torch.rand(len(images), 1, generator=generator(self.config.seed, "moves", step))
        share = self.weigher.drawn(draws.to(images))
        images = moved(self.group, images, share)
        with torch.no_grad():
            features = network.eval().features(images).values.float()  # type: ignore[operator]
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.augmenter.lr * factor
        torch.manual_seed(seed_of(self.config.seed, "virtual step", step))
        loss = self._judged(network, images, labels, normalised(self.weigher(features, share)), step)
        members = list(self.weigher.parameters())
        for parameter, gradient in zip(members, torch.autograd.grad(loss, members), strict=True):
            parameter.grad = gradient
        if not bool(loss.isfinite()):
            raise UserError(f"the held-out loss is not finite after step {step + 1}: lower augmenter.lookahead")
        self.optimiser.step()
        self.optimiser.zero_grad()
        with torch.no_grad():
            weights = normalised(self.weigher(features, share))
        self.weigher.note(share, weights)
        return images, weights

    def _judged(self, network: nn.Module, images: Tensor, labels: Tensor, weights: Tensor, step: int) -> Tensor:
        """The held-out loss after a virtual step; batch norms use the statistics of each batch, and keep none."""
        held_images, held_labels = self.judging.at(step, self.device)
        network.train()

        def losses(parameters: dict[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
            kept = {name: buffer.clone() for name, buffer in network.named_buffers()}
            logits = torch.func.functional_call(network, (parameters, kept), (images,)).logits.float()
            return F.cross_entropy(logits if self.prior is None else logits + self.prior, labels, reduction="none")

        return after_virtual_step(
            dict(network.named_parameters()),
            weights,
            lambda parameters: losses(parameters, images, labels),
            lambda parameters: losses(parameters, held_images, held_labels).mean(),
            self.config.augmenter.lookahead,
        )

    def tensors(self) -> dict[str, Tensor]:
        """All that is needed to continue."""
        found = {f"weigher/{key}": value for key, value in self.weigher.state_dict().items()}
        state = optimiser_tensors(self.optimiser, self.names)
        return found | {f"weigher optimiser/{key}": value for key, value in state.items()}

    def restore(self, tensors: dict[str, Tensor], path: Path) -> None:
        """Continue from what `tensors` returned."""
        load_weights(self.weigher, part_of(tensors, "weigher"), path)
        restore_optimiser(self.optimiser, self.names, part_of(tensors, "weigher optimiser"))
