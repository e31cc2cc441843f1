"""Networks made of the layers. Each has one definition; its level is a setting."""

from vpgcnn.lab.networks.augmented import Augmented, augmented, moved, moving_group
from vpgcnn.lab.networks.base import ImageNetwork, Prediction, to_unit
from vpgcnn.lab.networks.color import ColorCNN, ColorResNet
from vpgcnn.lab.networks.config import AugmenterConfig, ColorConfig, ModelConfig, PlainConfig, SE2Config
from vpgcnn.lab.networks.plain import PlainNet
from vpgcnn.lab.networks.policy import Policy
from vpgcnn.lab.networks.registry import MODELS, build, count_parameters, elements_of, in_words, ordinary, symmetry
from vpgcnn.lab.networks.reweighted import Weigher, after_virtual_step, normalised
from vpgcnn.lab.networks.se2 import SE2Net

__all__ = [
    "MODELS",
    "Augmented",
    "AugmenterConfig",
    "ColorCNN",
    "ColorConfig",
    "ColorResNet",
    "ImageNetwork",
    "ModelConfig",
    "PlainConfig",
    "PlainNet",
    "Policy",
    "Prediction",
    "SE2Config",
    "SE2Net",
    "Weigher",
    "after_virtual_step",
    "augmented",
    "build",
    "count_parameters",
    "elements_of",
    "in_words",
    "moved",
    "moving_group",
    "normalised",
    "ordinary",
    "symmetry",
    "to_unit",
]
