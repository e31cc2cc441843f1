"""What a network has learned about symmetry: numbers in, plain data out."""

from vpgcnn.analysis.curves import auroc, confidence_curve, crossings
from vpgcnn.analysis.levels import all_of_the_group, read_theta, read_weights, same_for_all
from vpgcnn.analysis.scores import brier, calibration_error, nll, orbit_probabilities, probabilities, reliability

__all__ = [
    "all_of_the_group",
    "auroc",
    "brier",
    "calibration_error",
    "confidence_curve",
    "crossings",
    "nll",
    "orbit_probabilities",
    "probabilities",
    "read_theta",
    "read_weights",
    "reliability",
    "same_for_all",
]
