"""vpgcnn: networks that learn, for each image, how much of a symmetry to use."""

from vpgcnn.centring import EquivarianceWarning
from vpgcnn.conv import GroupConv2d, LiftConv2d, fold, folded, unfold
from vpgcnn.encoders import InvariantEncoder
from vpgcnn.features import GroupFeature
from vpgcnn.groups import O2, SO2, Dihedral, Group, Hue, Product, Rotations
from vpgcnn.kernels import SirenKernel, TableKernel
from vpgcnn.levels import Full, GumbelSoftmax, Learned, Pathwise, RankedSoftmax, Variational, Window
from vpgcnn.norm import GroupBatchNorm, GroupDropout, GroupLayerNorm
from vpgcnn.pool import GroupPool, SpatialPool, join

__version__ = "0.1.0"

__all__ = [
    "O2",
    "SO2",
    "Dihedral",
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
