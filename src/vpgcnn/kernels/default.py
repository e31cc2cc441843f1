"""Which kernel a group has unless another is asked for."""

from __future__ import annotations

from vpgcnn.groups import Group
from vpgcnn.kernels.base import KernelSpec
from vpgcnn.kernels.harmonic import Harmonic
from vpgcnn.kernels.table import Table, has_table

__all__ = ["default_kernel"]


def default_kernel(group: Group) -> KernelSpec:
    """A table where turning by index is exact, harmonics elsewhere."""
    return Table() if has_table(group) else Harmonic()
