"""What can be chosen of each network. No torch here: configurations are read before anything heavy is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DIGITS", "RESNET", "RESNET_SMALL", "FamilyName", "GroupName", "LevelName", "ModelConfig", "SE2Config"]

GroupName = Literal["t2", "rotations", "so2", "o2"]
LevelName = Literal["full", "learned", "variational"]
FamilyName = Literal["window", "pathwise"]
SightName = Literal["input", "output"]


@dataclass(frozen=True)
class SE2Config:
    """A network on rotations and translations: lift, stages, one last group convolution, linear."""

    name: Literal["se2"] = "se2"
    """Which network this configures."""
    group: GroupName = "so2"
    """so2: rotations by any angle. rotations: the finite C_n. o2: with mirrors. t2: none, an ordinary CNN."""
    elements: int = 4
    """How many rotations are computed."""
    level: LevelName = "variational"
    """full: a G-CNN. learned: one level for all images. variational: a level for each image."""
    where: tuple[str, ...] = ("lift", "last")
    """Layers with a variational level: lift, stage1.first, stage1.second, …, last."""
    elsewhere: LevelName = "learned"
    """The level of the other layers of a variational network."""
    family: FamilyName = "window"
    """window: exact shares of a shared grid. pathwise: elements of each image's own (the paper's eq. so2)."""
    sees: SightName = "input"
    """What a level looks at: its layer's input, as in the paper, or output."""
    initial: float = 0.9
    """θ at the start: the share of all rotations in use."""
    block: Literal["residual", "plain"] = "residual"
    """residual: two convolutions and a shortcut a stage. plain: one convolution a stage."""
    widths: tuple[int, ...] = (32, 32, 64, 64)
    """Channels of the lift, of each stage, and of the last convolution."""
    kernel_sizes: tuple[int, ...] = (7, 7, 7)
    """Kernel size of the lift, of the stages, and of the last convolution."""
    stem_pool: bool = False
    """Whether to halve the map right after the lift."""
    stem_stride: int = 1
    """The stride of the lift; 2, with an even kernel, halves the map of an even image in the lift itself."""
    antialias: bool = False
    """Whether pools blur before their stride, so that features move smoothly with the image."""
    disc: bool = False
    """Whether features outside the largest disc are set to 0, so that nothing of the image's square frame is left."""
    smooth: float = 0.0
    """Standard deviation, in pixels, of a Gaussian blur of the input; 0 for none."""
    group_pool: Literal["max", "mean"] = "max"
    """How the group is summed away at the end."""
    space_pool: Literal["max", "mean"] = "max"
    """How positions are summed away at the end."""
    hidden: int = 35
    """Hidden functions of the SIREN kernels."""
    omega: float = 10.0
    """Frequency ω₀ of the SIREN kernels: lower is smoother."""


ModelConfig = SE2Config
"""The configuration of any network; `name` says which."""

RESNET = SE2Config()
"""The paper's SE(2) ResNet for CIFAR."""
RESNET_SMALL = SE2Config(widths=(16, 16, 32, 48), kernel_sizes=(5, 3, 3), stem_pool=True, hidden=32)
"""A narrow one with early pooling, for two CPU cores."""
DIGITS = SE2Config(
    elements=8, block="plain", widths=(10, 10, 20), kernel_sizes=(8, 5, 7), where=("last",), elsewhere="full",
    sees="output", stem_stride=2, disc=True, smooth=0.8, group_pool="mean", hidden=32, omega=4.0,
)  # fmt: skip
"""The small SE(2) net for MNIST67-180. Its last kernel is as large as its map: nothing of the frame is left."""
