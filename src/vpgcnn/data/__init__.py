"""Datasets, from the files their authors publish: no torchvision, nothing unpickled that could run code."""

from vpgcnn.data.base import Dataset, Split
from vpgcnn.data.config import DataConfig
from vpgcnn.data.registry import DATASETS, load

__all__ = ["DATASETS", "DataConfig", "Dataset", "Split", "load"]
