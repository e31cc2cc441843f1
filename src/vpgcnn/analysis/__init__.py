"""What a network has learned about symmetry, how any classifier answers to moved images: numbers in, plain data out.

Moved images: `follow`, `rotations`, `hues`. Layers: `layer_errors`, `local_error`. Levels: `levels`, `awareness`,
`against_truth`. The data themselves: `evidence`.
"""

from vpgcnn.analysis.awareness import against_truth, awareness, mutual_information, rank_correlation
from vpgcnn.analysis.curves import auroc, confidence_curve, crossings
from vpgcnn.analysis.evidence import Evidence, circle_picture, evidence
from vpgcnn.analysis.layers import LayerError, layer_errors
from vpgcnn.analysis.local import LocalError, local_error
from vpgcnn.analysis.motion import Kind
from vpgcnn.analysis.moves import MOVES, Moves, hues, linear_hues, moves_of, rotations
from vpgcnn.analysis.orbits import Orbit, follow
from vpgcnn.analysis.reading import (
    Observation,
    all_of_the_group,
    apart,
    marginals,
    observe,
    read_theta,
    read_weights,
    same_for_all,
)
from vpgcnn.analysis.scores import brier, calibration_error, nll, orbit_probabilities, probabilities, reliability
from vpgcnn.analysis.table import LevelTable, levels

__all__ = [
    "MOVES",
    "Evidence",
    "Kind",
    "LayerError",
    "LevelTable",
    "LocalError",
    "Moves",
    "Observation",
    "Orbit",
    "against_truth",
    "all_of_the_group",
    "apart",
    "auroc",
    "awareness",
    "brier",
    "calibration_error",
    "circle_picture",
    "confidence_curve",
    "crossings",
    "evidence",
    "follow",
    "hues",
    "layer_errors",
    "levels",
    "linear_hues",
    "local_error",
    "marginals",
    "moves_of",
    "mutual_information",
    "nll",
    "observe",
    "orbit_probabilities",
    "probabilities",
    "rank_correlation",
    "read_theta",
    "read_weights",
    "reliability",
    "rotations",
    "same_for_all",
]
