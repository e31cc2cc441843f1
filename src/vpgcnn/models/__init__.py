"""Networks made of the layers: one definition each; the level is an argument."""

from vpgcnn.models.augmented import Augmented, augmented, moving_group
from vpgcnn.models.base import Prediction
from vpgcnn.models.color import ColorCNN, ColorResNet
from vpgcnn.models.config import AugmenterConfig, ColorConfig, ModelConfig, PlainConfig, SE2Config
from vpgcnn.models.plain import PlainNet
from vpgcnn.models.policy import Policy
from vpgcnn.models.registry import MODELS, build, count_parameters, elements_of, in_words, ordinary, symmetry
from vpgcnn.models.se2 import SE2Net

__all__ = [
    "MODELS",
    "Augmented",
    "AugmenterConfig",
    "ColorCNN",
    "ColorConfig",
    "ColorResNet",
    "ModelConfig",
    "PlainConfig",
    "PlainNet",
    "Policy",
    "Prediction",
    "SE2Config",
    "SE2Net",
    "augmented",
    "build",
    "count_parameters",
    "elements_of",
    "in_words",
    "moving_group",
    "ordinary",
    "symmetry",
]
