"""What can be chosen of each network. No torch here: configurations are read before anything heavy is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

__all__ = [
    "COLOR_CNN",
    "COLOR_RESNET",
    "COLOR_RESNET50",
    "COLOR_RESNET_SMALL",
    "DIGITS",
    "DIGITS_IN_COLOR",
    "PLAIN_RESNET",
    "PLAIN_RESNET50",
    "PLAIN_RESNET_SMALL",
    "RESNET",
    "RESNET_SMALL",
    "AugmenterConfig",
    "ColorConfig",
    "FamilyName",
    "GroupName",
    "LevelName",
    "ModelConfig",
    "PlainConfig",
    "SE2Config",
    "SightName",
]

GroupName = Literal["t2", "rotations", "dihedral", "so2", "o2"]
LevelName = Literal["full", "learned", "variational"]
FamilyName = Literal["window", "drawn", "pathwise", "ranked", "gumbel"]
SightName = Literal["input", "output"]


@dataclass(frozen=True)
class SE2Config:
    """A network on rotations and translations: lift, stages, one last group convolution, linear."""

    name: Literal["se2"] = "se2"
    """Which network this configures."""
    group: GroupName = "so2"
    """so2: rotations by any angle. rotations: the finite C_n. o2, dihedral: with mirrors. t2: none, an ordinary CNN."""
    elements: int = 4
    """How many rotations are computed."""
    hues: int = 1
    """How many hue shifts, the multiples of 360°/hues, besides the rotations. 1: none."""
    level: LevelName = "variational"
    """full: a G-CNN. learned: one level for all images. variational: a level for each image."""
    where: tuple[str, ...] = ("lift", "last")
    """Layers with a variational level: lift, stage1.first, stage1.second, …, last."""
    elsewhere: LevelName = "learned"
    """The level of the other layers of a variational network."""
    family: FamilyName = "window"
    """window: exact shares of a shared grid. pathwise: elements of each image's own (the paper's). For finite
    groups: drawn (windows of which training draws elements), ranked (the paper's), gumbel (Partial G-CNN's)."""
    sees: SightName = "input"
    """What a level looks at: its layer's input, as in the paper, or output."""
    initial: float = 0.9
    """θ at the start: the share of all rotations in use (for gumbel the chance of each, at most 0.9)."""
    monotonic: bool = False
    """Whether the learned level of a layer stays within that of the layer before (Partial G-CNN's variant)."""
    encoder: int = 0
    """Channels of the encoders that choose an image's level; 0: as many as their layers, as in the paper."""
    detached: bool = False
    """Whether encoders only look: they learn to choose levels, but the features that they see are not shaped by it."""
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


@dataclass(frozen=True)
class ColorConfig:
    """A network on hue shifts and translations."""

    name: Literal["color"] = "color"
    """Which network this configures."""
    shape: Literal["cnn", "resnet"] = "cnn"
    """cnn: seven layers, for 28×28 images. resnet: a 7×7 lift of stride 2 and four stages."""
    elements: int = 3
    """How many hue shifts, the multiples of 360°/elements. 1: none, an ordinary CNN."""
    level: LevelName = "variational"
    """full: a G-CNN (CEConv). learned: one level for all images. variational: a level for each image."""
    where: tuple[str, ...] = ("conv6", "conv7")
    """Layers with a level that is not full: conv1, …, conv7 of the cnn; lift, stage1, …, stage4 of the resnet."""
    elsewhere: LevelName = "full"
    """The level of the other layers of a variational or learned network."""
    family: FamilyName = "window"
    """window: exact shares of the circle. drawn: the same, training draws elements of it. ranked: the paper's ranked
    softmax. gumbel: Partial G-CNN's. (pathwise is for continuous groups.)"""
    sees: SightName = "input"
    """What a level looks at: its layer's input, as in the paper, or output."""
    initial: float = 0.9
    """θ at the start: the share of all hues in use (for gumbel the chance of each but the first, at most 0.9)."""
    monotonic: bool = False
    """Whether the learned level of a layer stays within that of the layer before (Partial G-CNN's variant)."""
    encoder: int = 0
    """Channels of the encoders that choose an image's level; 0: as many as their layers, as in the paper."""
    detached: bool = False
    """Whether encoders only look: they learn to choose levels, but the features that they see are not shaped by it."""
    width: int = 17
    """Channels of the cnn; of an ordinary resnet's first stage (on hues fewer, so that parameters are as many)."""
    depths: tuple[int, ...] = (2, 2, 2, 2)
    """Blocks of each stage of the resnet: 2 2 2 2 is ResNet18, 3 4 6 3 ResNet34 and ResNet50."""
    block: Literal["basic", "bottleneck"] = "basic"
    """Of the resnet. basic: two 3×3 convolutions. bottleneck: 1×1, 3×3 and 1×1 to four times as many channels."""
    equivariant: int = 4
    """How many stages of the resnet are on hues; less than 4 is a hybrid."""
    separable: bool = True
    """Whether a kernel is a spatial part times a part on hues (CEConv), or a full table."""
    group_pool: Literal["flatten", "max", "mean"] = "flatten"
    """How hues end: as features of their own, or pooled."""
    dropout: float = 0.3
    """Share of the features that training drops between layers of the cnn."""


@dataclass(frozen=True)
class PlainConfig:
    """A ResNet in plain PyTorch, ordinary or converted to a group (`vpgcnn convert`)."""

    name: Literal["plain"] = "plain"
    """Which network this configures."""
    width: int = 64
    """Channels of the first stage, twice as many in each of the next."""
    depths: tuple[int, ...] = (2, 2, 2, 2)
    """Blocks of each stage: 2 2 2 2 is ResNet18, 3 4 6 3 ResNet34 and ResNet50."""
    block: Literal["basic", "bottleneck"] = "basic"
    """basic: two 3×3 convolutions. bottleneck: 1×1, 3×3 and 1×1 to four times as many channels (ResNet50)."""
    stem: Literal["large", "small"] = "large"
    """large: a 7×7 convolution of stride 2 and a pool. small: a 3×3 convolution, for images of 32 pixels or fewer."""
    mean: tuple[float, ...] = (0.0,)
    """What pixels are standardised with inside, after they were moved: one number, or one for each channel."""
    std: tuple[float, ...] = (1.0,)
    group: Literal["t2", "rotations", "dihedral"] = "t2"
    """Converted to: rotations (quarter or half turns), dihedral (mirrors too), t2 (none of them)."""
    elements: int = 4
    """How many rotations, 4 or 2."""
    hues: int = 1
    """Converted to so many hue shifts, the multiples of 360°/hues. 1: none."""
    level: LevelName = "full"
    """Of a converted network. full: all of the group at once. learned, variational: the identity to begin with."""
    layers: tuple[str, ...] = ()
    """Convolutions that look at other views, by name or the beginning of it, say layer3; none given: all."""
    levels: tuple[str, ...] = ()
    """Those of them that have a level; none given: the last."""
    until: str = ""
    """The module after which views are pooled and the rest is ordinary, say layer3; empty: the end."""
    mix: Literal["pointwise", "full", "none"] = "pointwise"
    """How convolutions look at other views: by 1×1 kernels, by kernels as large as their own, or not at all."""

    @property
    def ordinary(self) -> bool:
        """Whether it is converted to no group at all."""
        return self.group == "t2" and self.hues == 1


@dataclass(frozen=True)
class AugmenterConfig:
    """Whether images are moved at random before the network sees them, and how far."""

    kind: Literal["none", "fixed", "shared", "image", "policy"] = "none"
    """none. fixed: as far as `initial` says. shared: one learned range for all images (Augerino). image: a range
    for each image, which a small network of its own predicts (InstaAug). policy: first a search, on a part of the
    training images, for how likely and how far each is to be moved; then training with that (AdaAug)."""
    transform: Literal["auto", "rotation", "hue"] = "auto"
    """What moves: the image about its centre, or its hue (the linear rotation of RGB). auto: the hue before a
    colour network, the image before others."""
    initial: float = 0.5
    """The range at the start, as a share of the circle: images move by up to ± 180° times this."""
    floor: float = 0.01
    """The smallest range that can be learned."""
    samples: int = 8
    """How many moved copies of an image evaluation averages over; 1: the image as it is."""
    training: bool = True
    """Whether training images are moved too. If not, a fixed range is an average at test time alone."""
    predictor: Literal["small", "resnet"] = "small"
    """The network that predicts ranges: three convolutions, or an ordinary ResNet18 as wide as the network that is
    augmented (64 where that is no ResNet)."""
    width: int = 16
    """Channels of the small network that predicts ranges."""
    depends: Literal["image", "class"] = "image"
    """What a policy's advice depends on: the image, or its class alone."""
    search: int = 20
    """Epochs of the search for a policy."""
    rate: float = 1e-2
    """Highest learning rate (of Adam) of the policy while it is searched for."""
    held: float = 0.2
    """Share of the training images that the search trains no classifier on: there the policy is judged."""
    deviation: float = 0.1
    """How far, at most, a policy's move deviates at random from what it advises, as a share of 180°."""


ModelConfig = SE2Config | ColorConfig | PlainConfig
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
DIGITS_IN_COLOR = replace(DIGITS, hues=3)
"""The same on rotations and hues at once: 24 elements, and a window on each of the two circles."""
PLAIN_RESNET = PlainConfig()
"""An ordinary ResNet18."""
PLAIN_RESNET50 = PlainConfig(depths=(3, 4, 6, 3), block="bottleneck")
"""An ordinary ResNet50."""
PLAIN_RESNET_SMALL = PlainConfig(width=24)
"""A narrow one, for two CPU cores."""
COLOR_CNN = ColorConfig(initial=1.0)
"""The 7-layer colour CNN of ColorMNIST. Levels begin at all of the group: that is right here for most images."""
COLOR_RESNET = ColorConfig(shape="resnet", where=("lift", "stage4"), width=64, group_pool="max", dropout=0.0)
"""The colour ResNet18 of Flowers102."""
COLOR_RESNET50 = replace(COLOR_RESNET, depths=(3, 4, 6, 3), block="bottleneck")
"""A colour ResNet50."""
COLOR_RESNET_SMALL = ColorConfig(shape="resnet", where=("lift", "stage4"), width=24, group_pool="max", dropout=0.0)
"""A narrow one, for two CPU cores."""
