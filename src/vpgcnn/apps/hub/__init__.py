"""Trained networks as folders in the format of the Hugging Face Hub.

>>> from vpgcnn.apps.hub import Pretrained
>>> net = Pretrained.from_pretrained("mnist67-net")      # doctest: +SKIP
"""

from vpgcnn.apps.hub.folder import Classification, Pretrained

__all__ = ["Classification", "Pretrained"]
