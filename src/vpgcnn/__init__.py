"""vpgcnn: networks that learn, for each image, how much of a symmetry to use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vpgcnn.centring import EquivarianceWarning
    from vpgcnn.conv import GroupConv2d, LiftConv2d, fold, folded, unfold
    from vpgcnn.encoders import InvariantEncoder
    from vpgcnn.features import GroupFeature
    from vpgcnn.groups import O2, SO2, Dihedral, Group, Hue, Product, Rotations
    from vpgcnn.kernels import SirenKernel, TableKernel
    from vpgcnn.levels import Drawn, Full, GumbelSoftmax, Learned, Pathwise, RankedSoftmax, Variational, Window
    from vpgcnn.norm import GroupBatchNorm, GroupDropout, GroupLayerNorm, ReluDropout
    from vpgcnn.pool import GroupPool, SpatialPool, join

__version__ = "0.2.0"

__all__ = [
    "O2",
    "SO2",
    "Dihedral",
    "Drawn",
    "EquivarianceWarning",
    "Full",
    "Group",
    "GroupBatchNorm",
    "GroupConv2d",
    "GroupDropout",
    "GroupFeature",
    "GroupLayerNorm",
    "GroupPool",
    "GumbelSoftmax",
    "Hue",
    "InvariantEncoder",
    "Learned",
    "LiftConv2d",
    "Pathwise",
    "Product",
    "RankedSoftmax",
    "ReluDropout",
    "Rotations",
    "SirenKernel",
    "SpatialPool",
    "TableKernel",
    "Variational",
    "Window",
    "fold",
    "folded",
    "join",
    "unfold",
]

# Names are brought in when they are first used, so that `vpgcnn --help` does not wait for torch.
_HOMES = {
    "centring": ("EquivarianceWarning",),
    "conv": ("GroupConv2d", "LiftConv2d", "fold", "folded", "unfold"),
    "encoders": ("InvariantEncoder",),
    "features": ("GroupFeature",),
    "groups": ("O2", "SO2", "Dihedral", "Group", "Hue", "Product", "Rotations"),
    "kernels": ("SirenKernel", "TableKernel"),
    "levels": ("Drawn", "Full", "GumbelSoftmax", "Learned", "Pathwise", "RankedSoftmax", "Variational", "Window"),
    "norm": ("GroupBatchNorm", "GroupDropout", "GroupLayerNorm", "ReluDropout"),
    "pool": ("GroupPool", "SpatialPool", "join"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'vpgcnn' has no attribute {name!r}")
    value = getattr(import_module(f"vpgcnn.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
