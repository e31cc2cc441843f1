"""Measurements of symmetry: in a network's levels, in any classifier's answers, and in the data. Nothing is drawn.

Answers to moved images: `follow` with `rotations` or `hues`. Layers: `layer_errors`, `local_error`. Levels:
`read_levels`, `levels`, `awareness`, `against_truth`; what they save: `multiplications`. Data: `spread` and
`carried` on `moving_features`.
"""

from vpgcnn.measure.awareness import against_truth, awareness, mutual_information, rank_correlation
from vpgcnn.measure.carried import Carried, Twin, carried
from vpgcnn.measure.cost import Cost, multiplications
from vpgcnn.measure.curves import auroc, confidence_curve, crossings
from vpgcnn.measure.idle import idle_levels
from vpgcnn.measure.layers import LayerError, layer_errors
from vpgcnn.measure.local import LocalError, local_error
from vpgcnn.measure.motion import Kind
from vpgcnn.measure.moves import MOVES, Moves, hues, linear_hues, moves_of, rotations
from vpgcnn.measure.moving import MovingFeatures, moving_features
from vpgcnn.measure.orbits import Orbit, follow
from vpgcnn.measure.places import Circle, Places, at_places
from vpgcnn.measure.reading import LevelReading, read_levels, whole_group, with_mean_levels
from vpgcnn.measure.risk import betting_p_value, images_needed, smallest_cost, widest
from vpgcnn.measure.scores import brier, calibration_error, nll, orbit_probabilities, probabilities, reliability
from vpgcnn.measure.spread import Spread, folds_of, spread
from vpgcnn.measure.table import LevelTable, levels

__all__ = [
    "MOVES",
    "Carried",
    "Circle",
    "Cost",
    "Kind",
    "LayerError",
    "LevelReading",
    "LevelTable",
    "LocalError",
    "Moves",
    "MovingFeatures",
    "Orbit",
    "Places",
    "Spread",
    "Twin",
    "against_truth",
    "at_places",
    "auroc",
    "awareness",
    "betting_p_value",
    "brier",
    "calibration_error",
    "carried",
    "confidence_curve",
    "crossings",
    "folds_of",
    "follow",
    "hues",
    "idle_levels",
    "images_needed",
    "layer_errors",
    "levels",
    "linear_hues",
    "local_error",
    "moves_of",
    "moving_features",
    "multiplications",
    "mutual_information",
    "nll",
    "orbit_probabilities",
    "probabilities",
    "rank_correlation",
    "read_levels",
    "reliability",
    "rotations",
    "smallest_cost",
    "spread",
    "whole_group",
    "widest",
    "with_mean_levels",
]
