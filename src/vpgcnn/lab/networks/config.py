"""The settings of each network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from vpgcnn.groups import SO2, Dihedral, Group, Hue, Luminance, Product, Rotations, Saturation
from vpgcnn.kernels import Harmonic, KernelSpec, Siren, Table
from vpgcnn.levels import Full, LevelSpec, Shared, Variational

__all__ = [
    "COLOR_CNN",
    "COLOR_RESNET",
    "COLOR_RESNET50",
    "COLOR_RESNET_SMALL",
    "DIGITS",
    "DIGITS_IN_COLOR",
    "NO_GROUP",
    "PLAIN_RESNET",
    "PLAIN_RESNET50",
    "PLAIN_RESNET_SMALL",
    "RESNET",
    "RESNET_SMALL",
    "SIGNS",
    "SIGNS_MIRRORED",
    "AugmenterConfig",
    "ColorConfig",
    "LevelPlacement",
    "ModelConfig",
    "PlainConfig",
    "SE2Config",
]

NO_GROUP = Rotations(1)
"""The trivial group: an ordinary network."""


@dataclass(frozen=True)
class LevelPlacement:
    """The levels of a network, and the layers that have them. All networks on groups share these settings."""

    level: LevelSpec = Variational()
    """How much of the group to use: Full(), Shared() or Variational(), or with settings, such as
    "Variational(Window(initial=0.5), condition='output', encoder_width=16, detach_features=True)"."""
    where: tuple[str, ...] = ()
    """The layers that have this level."""
    elsewhere: LevelSpec = Full()
    """The level of the other layers."""
    monotonic: bool = False
    """Whether each shared level stays within that of the layer before it (a variant of Partial G-CNN)."""


@dataclass(frozen=True)
class SE2Config(LevelPlacement):
    """A network on rotations and translations: lift, stages, one last group convolution, linear."""

    name: Literal["se2"] = "se2"
    """Which network this configures."""
    group: Group = SO2(4)
    """SO2(n): rotations by any angle, n of them computed. Rotations(n): the finite C_n. O2(n), Dihedral(n): with
    mirrors. Product(SO2(n), Hue(m)): hue shifts too. none: an ordinary CNN."""
    where: tuple[str, ...] = ("lift", "last")
    """Layers with the level, if it is variational: lift, stage1.first, stage1.second, …, last."""
    elsewhere: LevelSpec = Shared()
    """The level of the other layers of a variational network."""
    kernel: KernelSpec = Siren(hidden=35)
    """The kernels: Siren(hidden, omega), where a lower omega is smoother; Harmonic(detail, order), which learns faster;
    or Table() for finite groups."""
    block: Literal["residual", "plain"] = "residual"
    """residual: two convolutions and a shortcut per stage. plain: one convolution per stage."""
    widths: tuple[int, ...] = (32, 32, 64, 64)
    """Channels of the lift, of each stage, and of the last convolution."""
    kernel_sizes: tuple[int, ...] = (7, 7, 7)
    """Kernel size of the lift, of the stages, and of the last convolution."""
    stem_pool: bool = False
    """Whether to halve the map right after the lift."""
    stem_stride: int = 1
    """The stride of the lift. With an even kernel, 2 halves the map of an even image in the lift itself."""
    antialias: bool = False
    """Whether pools blur before their stride, so that features move smoothly with the image."""
    disc: bool = False
    """Whether to zero features outside the largest disc, so that the square frame of the image leaves no trace."""
    smooth: float = 0.0
    """Standard deviation, in pixels, of a Gaussian blur of the input; 0 for none."""
    group_pool: Literal["max", "mean", "rms"] = "max"
    """How to pool over the group at the end."""
    space_pool: Literal["max", "mean"] = "max"
    """How to pool over positions at the end."""


@dataclass(frozen=True)
class ColorConfig(LevelPlacement):
    """A network on hue shifts and translations."""

    name: Literal["color"] = "color"
    """Which network this configures."""
    shape: Literal["cnn", "resnet"] = "cnn"
    """cnn: seven layers, for 28×28 images. resnet: a 7×7 lift of stride 2 and four stages."""
    group: Group = Hue(3)
    """Hue(m): the m hue shifts by multiples of 360°/m. Saturation(m), Luminance(m): shifts of these. Product: several
    at once. none: an ordinary CNN."""
    where: tuple[str, ...] = ("conv6", "conv7")
    """Layers with the level: conv1, …, conv7 of the cnn; lift, stage1, …, stage4 of the resnet."""
    width: int = 17
    """Channels of the cnn; of an ordinary resnet's first stage (fewer on hues, to match the parameter count)."""
    depths: tuple[int, ...] = (2, 2, 2, 2)
    """Blocks of each stage of the resnet: 2 2 2 2 is ResNet18, 3 4 6 3 ResNet34 and ResNet50."""
    block: Literal["basic", "bottleneck"] = "basic"
    """Of the resnet. basic: two 3×3 convolutions. bottleneck: 1×1, 3×3 and 1×1 to four times as many channels."""
    equivariant: int = 4
    """How many stages of the resnet are on hues; less than 4 is a hybrid."""
    separable: bool = True
    """Whether a kernel is a spatial part times a part on hues (CEConv), or a full table."""
    group_pool: Literal["flatten", "max", "mean"] = "flatten"
    """How to pool over hues at the end; flatten keeps them as separate features."""
    dropout: float = 0.3
    """Share of the features that training drops between layers of the cnn."""


@dataclass(frozen=True)
class PlainConfig:
    """A ResNet in plain PyTorch, ordinary or converted to a group (`vpgcnn convert`)."""

    name: Literal["plain"] = "plain"
    """Which network this configures."""
    width: int = 64
    """Channels of the first stage; each further stage has twice as many."""
    depths: tuple[int, ...] = (2, 2, 2, 2)
    """Blocks of each stage: 2 2 2 2 is ResNet18, 3 4 6 3 ResNet34 and ResNet50."""
    block: Literal["basic", "bottleneck"] = "basic"
    """basic: two 3×3 convolutions. bottleneck: 1×1, 3×3 and 1×1 to four times as many channels (ResNet50)."""
    stem: Literal["large", "small"] = "large"
    """large: a 7×7 convolution of stride 2 and a pool. small: a 3×3 convolution, for images of 32 pixels or fewer."""
    factory: str = ""
    """MODULE:FUNCTION that makes another network, which takes standardised images; the settings above do not count."""
    example: int = 64
    """Side of the images on which the conversion is tried."""
    group: Group = NO_GROUP
    """The group that the network is converted to: Hue(m), Rotations(4) or (2), Dihedral(4), or a Product of them.
    Rotations(1): it is not converted, but an ordinary network."""
    level: LevelSpec = Full()
    """The level of a converted network; an ordinary one has none. Full() uses the whole group from the start, Shared()
    and Variational() start with the identity."""
    layers: tuple[str, ...] = ()
    """Convolutions that see other views, by name or its beginning, such as layer3; empty for all."""
    levels: tuple[str, ...] = ()
    """Those of them that have a level; empty for the last."""
    until: str = ""
    """The module after which views are pooled and the rest is ordinary, such as layer3; empty for the end."""
    mix: Literal["auto", "pointwise", "full", "none"] = "auto"
    """How convolutions see other views: through 1×1 kernels, through kernels of their size, or not at all. auto: the
    last ones, as far as the budget goes."""
    budget: float | None = None
    """With auto: multiplications for mixing, relative to those that the views cost. None: a twentieth."""


@dataclass(frozen=True)
class AugmenterConfig:
    """Random moves of images before the network."""

    kind: Literal["none", "fixed", "shared", "image", "mixture", "policy", "reweighted", "autoaugment"] = "none"
    """none. fixed: by up to `initial`. shared: one learned range for all images (Augerino). image: a range for each
    image, which another small network predicts (InstaAug). mixture: two such ranges for each image, anywhere on the
    circle (after Singhal et al., 2023). policy: first a search, on part of the training images,
    for how likely and how far to move each image; then training with that policy (AdaAug).
    reweighted: by up to `initial`, and a small network learns how much each moved image counts (MetaAugment).
    autoaugment: the policy of 25 pairs of operations that AutoAugment found for CIFAR-10, not learned here."""
    transform: Literal["auto", "rotation", "hue"] = "auto"
    """rotation: about the centre of the image. hue: the linear rotation of RGB. auto: hue before a colour network,
    rotation before others."""
    initial: float = 0.5
    """The range at the start, as a share of the circle: images move by up to ± 180° times this."""
    floor: float = 0.01
    """The smallest range that can be learned."""
    samples: int = 8
    """Moved copies of an image that evaluation averages over; 1: the unmoved image."""
    training: bool = True
    """Whether training images move too. If not, a fixed range only averages at test time."""
    predictor: Literal["small", "resnet"] = "small"
    """The network that predicts ranges: three convolutions, or an ordinary ResNet18 as wide as the augmented network
    (64 channels if that is not a ResNet)."""
    width: int = 16
    """Channels of the small network that predicts ranges."""
    depends: Literal["image", "class"] = "image"
    """What a policy's advice depends on: the image, or only its class."""
    search: int = 20
    """Epochs of the search for a policy."""
    lr: float = 1e-2
    """Highest learning rate (of Adam) of the policy during the search, or of the network that weighs."""
    held: float = 0.2
    """Share of the training images that are held out, to judge a policy during its search or, in the whole training,
    the weights of reweighted images."""
    lookahead: float = 0.01
    """Learning rate of the virtual step of the classifier, after which the weights of reweighted images are judged."""
    deviation: float = 0.1
    """Largest random deviation of a move from the policy's advice, as a share of 180°."""

    @property
    def in_network(self) -> bool:
        """Whether the moves are part of the network, and random or averaged; the other kinds only change training."""
        return self.kind in ("fixed", "shared", "image", "mixture")


ModelConfig = SE2Config | ColorConfig | PlainConfig
"""The configuration of any network; `name` says which."""

RESNET = SE2Config()
"""The paper's SE(2) ResNet for CIFAR."""
RESNET_SMALL = SE2Config(widths=(16, 16, 32, 48), kernel_sizes=(5, 3, 3), stem_pool=True, kernel=Siren(hidden=32))
"""A narrow one with early pooling, for two CPU cores."""
DIGITS = SE2Config(
    group=SO2(8), block="plain", widths=(10, 10, 20), kernel_sizes=(8, 5, 7), level=Variational(condition="output"),
    where=("last",), elsewhere=Full(), stem_stride=2, disc=True, smooth=0.8, group_pool="mean", kernel=Siren(omega=4.0),
)  # fmt: skip
"""The small SE(2) net for MNIST67-180. Its last kernel is as large as its map."""
DIGITS_IN_COLOR = replace(DIGITS, group=Product(SO2(8), Hue(3)))
"""The same on rotations and hues at once: 24 elements, and a window on each of the two circles."""
SIGNS = replace(DIGITS, widths=(16, 24, 192), kernel_sizes=(8, 5, 5), stem_pool=True, kernel=Harmonic())
"""The same for traffic signs of 40×40 pixels. Its last layer is wide, because a mean over all rotations blurs what each
channel says: with a narrow one, the whole group costs free signs accuracy on the road."""
SIGNS_MIRRORED = replace(SIGNS, group=Dihedral(1), kernel=Table(), widths=(24, 32, 64))
"""The same on mirrors."""
SIGNS_IN_COLOR = replace(
    DIGITS, group=Product(Saturation(4), Luminance(4)), kernel=Table(separable=True), smooth=0.0, disc=False
)
"""The net for MNIST67-180 on saturations × luminances, for traffic signs of 28×28 pixels."""
PLAIN_RESNET = PlainConfig()
"""An ordinary ResNet18."""
PLAIN_RESNET50 = PlainConfig(depths=(3, 4, 6, 3), block="bottleneck")
"""An ordinary ResNet50."""
PLAIN_RESNET_SMALL = PlainConfig(width=24)
"""A narrow one, for two CPU cores."""
COLOR_CNN = ColorConfig()
"""The 7-layer colour CNN of ColorMNIST."""
COLOR_RESNET = ColorConfig(shape="resnet", where=("lift", "stage4"), width=64, group_pool="max", dropout=0.0)
"""The colour ResNet18 of Flowers102."""
COLOR_RESNET50 = replace(COLOR_RESNET, depths=(3, 4, 6, 3), block="bottleneck")
"""A colour ResNet50."""
COLOR_RESNET_SMALL = ColorConfig(shape="resnet", where=("lift", "stage4"), width=24, group_pool="max", dropout=0.0)
"""A narrow one, for two CPU cores."""
