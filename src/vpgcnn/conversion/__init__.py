"""Conversion of an ordinary classifier to a group: views of an image as one batch, and convolutions that mix them."""

from vpgcnn.conversion.mixing import MixedConv2d
from vpgcnn.conversion.network import Converted, convert
from vpgcnn.conversion.outputs import Directions, Outputs
from vpgcnn.conversion.plan import Cost
from vpgcnn.conversion.softening import Softened, soften

__all__ = ["Converted", "Cost", "Directions", "MixedConv2d", "Outputs", "Softened", "convert", "soften"]
