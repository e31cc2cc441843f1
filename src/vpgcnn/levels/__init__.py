"""How much of the group a layer uses: levels, the families they learn and the distributions they return."""

from vpgcnn.levels.distributions import Distribution, WindowDistribution
from vpgcnn.levels.encoder import InvariantEncoder
from vpgcnn.levels.families import Family, GumbelSoftmax, RankedSoftmax, ReparametrizedWindow, SampledWindow, Window
from vpgcnn.levels.level import (
    Fixed,
    Full,
    Level,
    LevelSpec,
    Shared,
    SharedLevel,
    Variational,
    VariationalLevel,
    set_dial,
    set_progress,
)
from vpgcnn.levels.mixture import Mixture

__all__ = [
    "Distribution",
    "Family",
    "Fixed",
    "Full",
    "GumbelSoftmax",
    "InvariantEncoder",
    "Level",
    "LevelSpec",
    "Mixture",
    "RankedSoftmax",
    "ReparametrizedWindow",
    "SampledWindow",
    "Shared",
    "SharedLevel",
    "Variational",
    "VariationalLevel",
    "Window",
    "WindowDistribution",
    "set_dial",
    "set_progress",
]
