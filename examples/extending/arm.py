"""An arm: how well do levels learn from few images? It joins the experiment on MNIST67-180.

    vpgcnn --use arm.py reproduce fig-mnist67-180 --arms variational few-images

An arm turns the settings of the experiment's recipe into other settings; the seeds and the measurements are the same.
"""

from dataclasses import replace

from vpgcnn import Variational, Window
from vpgcnn.lab.experiments import register_arm
from vpgcnn.lab.training.config import TrainConfig


def few_images(config: TrainConfig) -> TrainConfig:
    """A level for each image, learned from 300 digits, with windows that start half open."""
    level = Variational(Window(initial=0.5), condition="output")
    return replace(config, model=replace(config.model, level=level), data=replace(config.data, limit=300))


register_arm("fig-mnist67-180", "few-images", few_images)
