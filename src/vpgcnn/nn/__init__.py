"""Layers, shaped like those of `torch.nn`."""

from vpgcnn._ops.active import all_elements, used_elements
from vpgcnn._ops.choice import fixed_paths, measured_paths
from vpgcnn._ops.recompute import recomputed
from vpgcnn.nn._checks import EquivarianceWarning
from vpgcnn.nn.activation import Pointwise, ReLU
from vpgcnn.nn.conv import GroupConv2d, LiftConv2d, fold, folded, name_layers, unfold
from vpgcnn.nn.dropout import GroupDropout, ReluDropout
from vpgcnn.nn.norm import GroupBatchNorm, GroupLayerNorm, synchronise
from vpgcnn.nn.pool import GroupPool, SpatialPool

__all__ = [
    "EquivarianceWarning",
    "GroupBatchNorm",
    "GroupConv2d",
    "GroupDropout",
    "GroupLayerNorm",
    "GroupPool",
    "LiftConv2d",
    "Pointwise",
    "ReLU",
    "ReluDropout",
    "SpatialPool",
    "all_elements",
    "fixed_paths",
    "fold",
    "folded",
    "measured_paths",
    "name_layers",
    "recomputed",
    "synchronise",
    "unfold",
    "used_elements",
]
