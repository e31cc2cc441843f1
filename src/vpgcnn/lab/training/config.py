"""The settings of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.networks.config import AugmenterConfig, ModelConfig, SE2Config
from vpgcnn.levels import Fixed, Full
from vpgcnn.objective import Band, DualWeight, KlSchedule, Price

__all__ = ["OBJECTIVES", "LevelOptimiserConfig", "Objective", "OptimiserConfig", "TrainConfig", "settled"]

Objective = Price | KlSchedule | DualWeight | Band
"""What windows cost in the loss; `name` says which: price, schedule, dual or band."""
OBJECTIVES: dict[str, type[Objective]] = {"price": Price, "schedule": KlSchedule, "dual": DualWeight, "band": Band}
"""The same by name."""


@dataclass(frozen=True)
class OptimiserConfig:
    """The optimiser of one group of parameters."""

    kind: Literal["adamw", "adam", "sgd"] = "adamw"
    """The optimiser (sgd: momentum 0.9)."""
    lr: float = 1e-3
    """Highest learning rate."""
    weight_decay: float = 1e-3
    """Weight decay."""


@dataclass(frozen=True)
class LevelOptimiserConfig:
    """The optimiser of the levels; by default that of the network, without weight decay."""

    kind: Literal["same", "adamw", "adam", "sgd"] = "same"
    """The optimiser; same: as for the weights."""
    lr: float | None = None
    """Highest learning rate; None: that of the weights."""
    weight_decay: float = 0.0
    """Weight decay."""

    def beside(self, weights: OptimiserConfig) -> OptimiserConfig:
        """The settings of the levels, given those of the weights."""
        kind = weights.kind if self.kind == "same" else self.kind
        return OptimiserConfig(kind, weights.lr if self.lr is None else self.lr, self.weight_decay)


@dataclass(frozen=True)
class TrainConfig:
    """One run: data, network, objective, optimisers."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=SE2Config)
    augmenter: AugmenterConfig = field(default_factory=AugmenterConfig)
    """Random moves before the network: the baselines Augerino and InstaAug, and averages at test time."""
    objective: Objective = Price()
    """What training adds to the nll: by default a price for the share of the group that is not in use."""
    balance: float = 0.0
    """For long tails: 1 trains for a test in which all classes are equally frequent, 0 for one like the training."""
    optimiser: OptimiserConfig = OptimiserConfig()
    """Optimiser of the network's weights."""
    level_optimiser: LevelOptimiserConfig = LevelOptimiserConfig()
    """Optimiser of the levels: encoders and shared windows."""
    epochs: int = 10
    """Passes over the training images."""
    batch_size: int = 64
    """Images per step, over all processes together: the run is the same with any number of processes."""
    warmup: float = 0.1
    """Share of the training in which learning rates rise; they then fall along a cosine."""
    final: float = 0.0
    """Learning rate at the end, as a share of the highest."""
    clip: float = 0.0
    """Largest norm of the gradient; 0 for no clipping."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision."""
    select: Literal["accuracy", "nll", "last"] = "accuracy"
    """Which epoch is tested: best validation accuracy (the later of equals), lowest validation nll, or the last."""
    start_from: Path | None = None
    """A run's folder or a weights file whose weights to start from, instead of random ones."""
    seed: int = 0
    """Seed of the initial weights, the order of images and every random choice."""
    data_dir: Path | None = None
    """Directory of the published files; by default $VPGCNN_DATA, or the user's cache."""
    device: Literal["auto", "cpu"] = "auto"
    """auto: a GPU if there is one."""
    threads: int = 0
    """CPU threads; 0 leaves the choice to torch."""
    save_seconds: float = 60.0
    """Seconds between two saves of the state to resume from; it is also saved after each epoch."""
    log_steps: int = 50
    """Steps between two lines of metrics; 0 for one line per epoch only."""
    watch: int = 0
    """Record the weights of every level for this many validation images after each epoch."""
    track: Literal["none", "tensorboard", "wandb"] = "none"
    """Also send the metrics to TensorBoard (in the run's folder) or to Weights & Biases."""


def settled(config: TrainConfig) -> TrainConfig:
    """The same run with every setting that has no effect at its default.

    Without an augmenter its settings have none; nor has the optimiser of levels where there is no level to learn, nor
    the objective where no level has a KL.
    """
    own = config.level_optimiser.beside(config.optimiser)
    config = replace(config, level_optimiser=LevelOptimiserConfig(own.kind, own.lr, own.weight_decay))
    learns = config.augmenter.kind in ("shared", "image", "mixture")
    if isinstance(config.model.level, Full | Fixed) and not learns:
        config = replace(config, objective=TrainConfig().objective, level_optimiser=TrainConfig().level_optimiser)
    if config.augmenter.kind == "none":
        config = replace(config, augmenter=AugmenterConfig())
    if config.model.level.is_full and config.augmenter.kind not in ("shared", "image", "mixture"):
        config = replace(config, level_optimiser=TrainConfig().level_optimiser)
    return config
