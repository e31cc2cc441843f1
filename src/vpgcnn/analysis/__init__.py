"""What a network has learned about symmetry: numbers in, plain data out."""

from vpgcnn.analysis.curves import auroc, confidence_curve, crossings
from vpgcnn.analysis.levels import read_theta

__all__ = ["auroc", "confidence_curve", "crossings", "read_theta"]
