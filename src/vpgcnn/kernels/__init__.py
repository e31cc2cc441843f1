"""Kernels: functions on the plane and the group, and how to convolve with them."""

from vpgcnn.kernels.base import Kernel, KernelSpec
from vpgcnn.kernels.constrained import Constrained, ConstrainedKernel
from vpgcnn.kernels.default import default_kernel
from vpgcnn.kernels.harmonic import Harmonic, HarmonicKernel
from vpgcnn.kernels.projected import Projected, ProjectedKernel
from vpgcnn.kernels.relaxed import Relaxed, RelaxedKernel
from vpgcnn.kernels.residual import ResidualPathway, ResidualPathwayKernel
from vpgcnn.kernels.siren import Nonstationary, Siren, SirenKernel
from vpgcnn.kernels.table import Table, TableKernel

__all__ = [
    "Constrained",
    "ConstrainedKernel",
    "Harmonic",
    "HarmonicKernel",
    "Kernel",
    "KernelSpec",
    "Nonstationary",
    "Projected",
    "ProjectedKernel",
    "Relaxed",
    "RelaxedKernel",
    "ResidualPathway",
    "ResidualPathwayKernel",
    "Siren",
    "SirenKernel",
    "Table",
    "TableKernel",
    "default_kernel",
]
