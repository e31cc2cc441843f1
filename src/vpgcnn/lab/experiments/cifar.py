"""table-cifar10 and table-cifar100: test accuracy of networks on rotations."""

from __future__ import annotations

from statistics import mean

from torch import nn

from vpgcnn.groups import SO2
from vpgcnn.lab.data import Dataset
from vpgcnn.lab.experiments.arms import FULL, FULL_INSTAAUG, INSTAAUG, SHARED, T2, VARIATIONAL, augmented, with_level
from vpgcnn.lab.experiments.base import Arm, Claim, Experiment, Row, markdown, spread
from vpgcnn.lab.experiments.by_hand import by_hand
from vpgcnn.lab.experiments.verdicts import better, every
from vpgcnn.lab.training.checkpoint import Card
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.measure import read_levels

__all__ = ["CIFAR10", "CIFAR100", "measure_photographs", "table_photographs"]

FULL8 = with_level("full", group=SO2(8))
ARMS = {
    "t2": Arm("the paper's T(2): the same network without rotations, an ordinary ResNet", T2, published="82.0 ± 0.2"),
    "t2-instaaug": Arm("t2 with InstaAug: a predicted range of rotations", INSTAAUG, (0,), published="81.9 ± 0.4"),
    "full": Arm("fully equivariant, 4 rotations", FULL, published="83.9 ± 0.3"),
    "full-instaaug": Arm("full with InstaAug", FULL_INSTAAUG, (0,), published="81.2 ± 1.8"),
    "shared": Arm("one learned level for all images (Partial G-CNN), 4 rotations", SHARED, published="85.1 ± 0.6"),
    "variational": Arm("a level for each image, 4 rotations", VARIATIONAL, published="85.1 ± 0.4"),
    "full8": Arm("full with 8 rotations", FULL8, optional=True, published="86.8 ± 0.6"),
    "full8-instaaug": Arm("full8 with InstaAug", augmented(FULL8, "image"), optional=True, published="82.4 ± 0.5"),
    "shared8": Arm(
        "shared with 8 rotations", with_level("shared", group=SO2(8)), optional=True, published="87.3 ± 0.4"
    ),
    "variational8": Arm(
        "variational with 8 rotations", with_level("variational", group=SO2(8)), optional=True, published="87.6 ± 0.2"
    ),
}
ARMS100 = {
    "t2": Arm("the paper's T(2): the same network without rotations, an ordinary ResNet", T2),
    "full": Arm("fully equivariant, 4 rotations", FULL, published="52.40"),
    "shared": Arm("one learned level for all images (Partial G-CNN)", SHARED, published="57.02"),
    "variational": Arm("a level for each image", VARIATIONAL, published="57.67"),
}


def measure_photographs(model: nn.Module, _: Card, dataset: Dataset, __: Quiet) -> Row:
    """θ of each layer: its mean and its deviation between the first 2,000 test images."""
    theta = read_levels(model, dataset.test.images[:2000]).theta
    both = {layer: [float(values.mean()), float(values.std())] for layer, values in theta.items()}
    return {"theta": {layer: [round(value, 4) for value in values] for layer, values in both.items()}}


def table_photographs(rows: list[Row]) -> str:
    """One line for each arm: mean ± standard deviation over seeds."""
    lines = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        same = [row for row in rows if row["arm"] == arm]
        test, validation = (spread([row[part]["accuracy"] for row in same]) for part in ("test", "validation"))
        minutes = mean(row["seconds"] for row in same) / 60
        seeds = ", ".join(str(row["seed"]) for row in same)
        lines.append([arm, test, seeds, validation, f"{same[0]['parameters']:,}", f"{minutes:.1f}"])
    heads = ["arm", "test accuracy", "seeds", "validation accuracy", "parameters", "minutes a run"]
    return markdown(heads, lines)


CIFAR10 = Experiment(
    name="table-cifar10",
    about="test accuracy on CIFAR-10 of T(2), full, shared and variational networks of the same size, and InstaAug",
    recipe="cifar10-se2",
    base=by_hand("cifar10-se2"),
    arms=ARMS,
    seeds=(0, 1),
    measure=measure_photographs,
    table=table_photographs,
    notes=("The paper's numbers are for its larger network, all of CIFAR-10 and 300 epochs.",),
    claims=(
        Claim(
            "on CIFAR-10 partial networks are better than the fully equivariant one",
            every(better("shared", "full"), better("variational", "full")),
        ),
        Claim(
            "on CIFAR-10 InstaAug makes ordinary and equivariant networks worse",
            every(better("t2", "t2-instaaug"), better("full", "full-instaaug")),
        ),
    ),
)
CIFAR100 = Experiment(
    name="table-cifar100",
    about="test accuracy on CIFAR-100 of T(2), full, shared and variational networks of the same size",
    recipe="cifar100-se2",
    base=by_hand("cifar100-se2"),
    arms=ARMS100,
    seeds=(0,),
    measure=measure_photographs,
    table=table_photographs,
    notes=("The paper's numbers are for its larger network, all of CIFAR-100 and 300 epochs.",),
    claims=(
        Claim(
            "on CIFAR-100 partial networks are better than the fully equivariant one",
            every(better("shared", "full"), better("variational", "full")),
        ),
    ),
)
