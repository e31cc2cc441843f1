"""What can be chosen of a run. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from vpgcnn.data.config import DataConfig
from vpgcnn.models.config import AugmenterConfig, ModelConfig, SE2Config

__all__ = ["ObjectiveConfig", "OptimiserConfig", "TrainConfig", "settled"]


@dataclass(frozen=True)
class OptimiserConfig:
    """How one group of parameters learns."""

    kind: Literal["adamw", "adam", "sgd"] = "adamw"
    """The optimiser (sgd: momentum 0.9)."""
    rate: float = 1e-3
    """Highest learning rate."""
    decay: float = 1e-3
    """Weight decay."""


@dataclass(frozen=True)
class ObjectiveConfig:
    """nll + λ·kl, and where λ comes from."""

    mode: Literal["schedule", "dual", "band"] = "schedule"
    """schedule: λ is held, ramped, then constant or lowered. dual: λ grows while the nll is below a tolerance.
    band: λ keeps the mean kl between two bounds (InstaAug)."""
    start: float = 0.01
    """λ at the start (all modes)."""
    peak: float = 0.11
    """λ after the ramp (schedule)."""
    hold: float = 0.5
    """Share of the training before the ramp (schedule)."""
    ramp: float = 0.5
    """Share of the training that the ramp takes (schedule)."""
    stay: float = 1.0
    """Share of the training for which λ stays there (schedule)."""
    fall: float = 0.0
    """Share of the training in which λ then falls (schedule)."""
    end: float = 0.0
    """λ after it has fallen (schedule)."""
    tolerance: float = 0.04
    """Classification loss, in nats, up to which windows are opened (dual)."""
    speed: float = 0.03
    """λ is multiplied by exp(± speed) at each step (dual), or moved by as much (band)."""
    low: float = 0.2
    """Smallest mean kl, in nats: below it λ falls, and may become negative (band)."""
    high: float = 1.5
    """Largest mean kl: above it λ grows (band)."""
    balance: float = 0.0
    """For long tails: 1 trains for a test in which all classes are equally frequent, 0 for one like the training."""


@dataclass(frozen=True)
class TrainConfig:
    """One run: data, network, objective, optimisers."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=SE2Config)
    augmenter: AugmenterConfig = field(default_factory=AugmenterConfig)
    """Random moves before the network: the baselines Augerino and InstaAug, and averages at test time."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    network: OptimiserConfig = field(default_factory=OptimiserConfig)
    """Optimiser of the network's weights."""
    levels: OptimiserConfig = field(default_factory=lambda: OptimiserConfig(decay=0.0))
    """Optimiser of the levels: encoders, learned windows."""
    epochs: int = 10
    """Passes over the training images."""
    batch_size: int = 64
    """Images a step, over all processes together: the same run on any number of them."""
    warmup: float = 0.1
    """Share of the training in which learning rates rise; they then fall along a cosine."""
    final: float = 0.0
    """Learning rates at the end, as a share of the highest."""
    clip: float = 0.0
    """Largest norm of the gradient; 0 for no clipping."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision."""
    select: Literal["accuracy", "nll", "last"] = "accuracy"
    """Which epoch is tested: best validation accuracy (the later of equals), lowest validation nll, or the last."""
    start: Path | None = None
    """A run's folder or a weights file to begin with, instead of random weights."""
    seed: int = 0
    """Of the initial weights, the order of images and every random choice."""
    data_dir: Path | None = None
    """Where the published files are; else $VPGCNN_DATA, else the user's cache."""
    device: Literal["auto", "cpu"] = "auto"
    """auto: a GPU where there is one."""
    threads: int = 0
    """CPU threads; 0 leaves it to torch."""
    save_seconds: float = 60.0
    """How often, besides after each epoch, the state to resume from is written."""
    log_steps: int = 50
    """Write a line of metrics every so many steps; 0 for epochs only."""
    watch: int = 0
    """Write down the weights of every level for so many validation images after each epoch."""


def settled(config: TrainConfig) -> TrainConfig:
    """The same run, with what has no effect at its defaults: an augmenter or an optimiser of levels where none is."""
    if config.augmenter.kind == "none":
        config = replace(config, augmenter=AugmenterConfig())
    if config.model.level == "full" and config.augmenter.kind in ("none", "fixed", "policy"):
        config = replace(config, levels=TrainConfig().levels)
    return config
