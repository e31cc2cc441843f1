"""Experiments: arms and seeds of a comparison, run one after the other and written to one result.

Each table or figure of the paper has one file here, named in `registry`; `register_arm` adds an arm to one of
them from a file outside the package.
"""

from vpgcnn.lab.experiments.base import Arm, Experiment
from vpgcnn.lab.experiments.registry import register_arm

__all__ = ["Arm", "Experiment", "register_arm"]
