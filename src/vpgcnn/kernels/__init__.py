"""Kernels: functions on the plane and the group, and how to convolve with them."""

from vpgcnn.groups import Group
from vpgcnn.kernels.base import Kernel, KernelSpec
from vpgcnn.kernels.siren import Siren, SirenKernel
from vpgcnn.kernels.table import Table, TableKernel, has_table

__all__ = ["Kernel", "KernelSpec", "Siren", "SirenKernel", "Table", "TableKernel", "default_kernel"]


def default_kernel(group: Group) -> KernelSpec:
    """A table where turning by index is exact, a SIREN elsewhere."""
    return Table() if has_table(group) else Siren()
