"""Datasets read from the files that their authors publish, without torchvision and without unsafe unpickling."""

from vpgcnn.lab.data.base import Dataset, Split
from vpgcnn.lab.data.config import DataConfig
from vpgcnn.lab.data.registry import DATASETS, DatasetEntry, load, register

__all__ = ["DATASETS", "DataConfig", "Dataset", "DatasetEntry", "Split", "load", "register"]
