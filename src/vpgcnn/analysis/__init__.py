"""What a network has learned about symmetry: numbers in, plain data out."""

from vpgcnn.analysis.curves import auroc, confidence_curve, crossings
from vpgcnn.analysis.levels import all_of_the_group, read_theta, read_weights, same_for_all
from vpgcnn.analysis.moves import MOVES, Moves, hues, linear_hues, moves_of, rotations
from vpgcnn.analysis.orbits import Orbit, follow
from vpgcnn.analysis.scores import brier, calibration_error, nll, orbit_probabilities, probabilities, reliability

__all__ = [
    "MOVES",
    "Moves",
    "Orbit",
    "all_of_the_group",
    "auroc",
    "brier",
    "calibration_error",
    "confidence_curve",
    "crossings",
    "follow",
    "hues",
    "linear_hues",
    "moves_of",
    "nll",
    "orbit_probabilities",
    "probabilities",
    "read_theta",
    "read_weights",
    "reliability",
    "rotations",
    "same_for_all",
]
