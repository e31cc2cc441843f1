"""What a network has learned about symmetry: numbers in, plain data out."""

from vpgcnn.analysis.awareness import against_truth, awareness, mutual_information, rank_correlation
from vpgcnn.analysis.curves import auroc, confidence_curve, crossings
from vpgcnn.analysis.levels import all_of_the_group, read_theta, read_weights, same_for_all
from vpgcnn.analysis.moves import MOVES, Moves, hues, linear_hues, moves_of, rotations
from vpgcnn.analysis.orbits import Orbit, follow
from vpgcnn.analysis.scores import brier, calibration_error, nll, orbit_probabilities, probabilities, reliability

__all__ = [
    "MOVES",
    "Moves",
    "Orbit",
    "against_truth",
    "all_of_the_group",
    "auroc",
    "awareness",
    "brier",
    "calibration_error",
    "confidence_curve",
    "crossings",
    "follow",
    "hues",
    "linear_hues",
    "moves_of",
    "mutual_information",
    "nll",
    "orbit_probabilities",
    "probabilities",
    "rank_correlation",
    "read_theta",
    "read_weights",
    "reliability",
    "rotations",
    "same_for_all",
]
