"""Everything that can be reproduced, by name: which arms, which measurements, what the paper found."""

from __future__ import annotations

from vpgcnn.errors import UserError
from vpgcnn.experiments.arms import (
    AVERAGED,
    FULL,
    LEARNED,
    T2,
    VARIATIONAL,
    as_published,
    converted,
    drawn,
    jittered,
    moved,
    partial_gcnn,
    plain,
    tuned,
    turned,
    wide,
    with_level,
)
from vpgcnn.experiments.base import Count, Experiment, Reproduction, View
from vpgcnn.experiments.colors import measure_colors, table_colors
from vpgcnn.experiments.cost import measure_cost, table_cost
from vpgcnn.experiments.digits import measure_digits, table_digits
from vpgcnn.experiments.notes import (
    COLORMNIST,
    CONFIDENCE,
    CONVERT,
    COST,
    DIGITS,
    ERRORS,
    FLOWERS,
    PRINCIPLE,
    RANGES,
    STABILITY,
    TURN_HUE,
    WITNESS,
)
from vpgcnn.experiments.photographs import measure_photographs, table_photographs
from vpgcnn.experiments.principle import LAMBDAS, arm_of, chart_principle, measure_principle, table_principle
from vpgcnn.experiments.ranges import chart_ranges, measure_ranges, table_ranges
from vpgcnn.experiments.stability import chart_stability, follow, measure_nothing, table_stability
from vpgcnn.experiments.turn_hue import chart_turn_hue, measure_turn_hue, table_turn_hue
from vpgcnn.experiments.views import (
    ADAAUG,
    COLOR,
    adaaug_rows,
    calibration_chart,
    calibration_rows,
    color_rows,
    error_chart,
    flowers_chart,
    flowers_rows,
    table_adaaug,
    table_calibration,
    table_color,
    table_errors,
    table_examples,
)
from vpgcnn.experiments.witness import measure_witness, table_witness
from vpgcnn.report.digits import figure

__all__ = ["REPRODUCTIONS", "reproduction"]

HYBRID = with_level("full", equivariant=2)
LIGHT = 16
"""Channels of encoders that add next to nothing, so that the network can be wider instead."""
FLOWERS_ARMS = ("resnet", "ce3", "vp3")
"""Those that figures of Flowers102 compare."""

EXPERIMENTS = {
    "fig-mnist67-180": Experiment(
        "confidence against rotation angle for 6s and 7s: levels, and augmentation instead of levels",
        "mnist67-180",
        {
            "variational": VARIATIONAL,
            "learned": LEARNED,
            "full": FULL,
            "t2": T2,
            "t2-rotate": turned,
            "t2-tta": AVERAGED,
            "t2-augerino": moved(T2, "shared"),
            "t2-instaaug": moved(T2, "image"),
            "t2-adaaug": moved(T2, "policy"),
            "full-instaaug": moved(FULL, "image"),
        },
        (0, 1, 2),
        measure_digits,
        table_digits,
        {"cpu": "mnist67-180", "paper": "mnist67-180-paper"},
        chart=figure,
        notes={"cpu": DIGITS},
    ),
    "table-cifar10": Experiment(
        "test accuracy on CIFAR-10 of T(2), full, learned and variational networks of the same size, and InstaAug",
        "cifar10-se2",
        {
            "t2": T2,
            "t2-instaaug": moved(T2, "image"),
            "full": FULL,
            "full-instaaug": moved(FULL, "image"),
            "learned": LEARNED,
            "variational": VARIATIONAL,
            "full8": with_level("full", elements=8),
            "full8-instaaug": moved(with_level("full", elements=8), "image"),
            "learned8": with_level("learned", elements=8),
            "variational8": with_level("variational", elements=8),
        },
        (0, 1),
        measure_photographs,
        table_photographs,
        {"cpu": "cifar10-cpu", "paper": "cifar10"},
        fewer=dict.fromkeys(("t2-instaaug", "full-instaaug"), (0,)),
        optional=frozenset({"full8", "full8-instaaug", "learned8", "variational8"}),
        notes={"cpu": "The paper's numbers are of its larger network, all of CIFAR-10 and 300 epochs."},
        published={
            "t2": "82.0 ± 0.2",
            "t2-instaaug": "81.9 ± 0.4",
            "full": "83.9 ± 0.3",
            "full-instaaug": "81.2 ± 1.8",
            "learned": "85.1 ± 0.6",
            "variational": "85.1 ± 0.4",
            "full8": "86.8 ± 0.6",
            "full8-instaaug": "82.4 ± 0.5",
            "learned8": "87.3 ± 0.4",
            "variational8": "87.6 ± 0.2",
        },
    ),
    "table-cifar100": Experiment(
        "test accuracy on CIFAR-100 of T(2), full, learned and variational networks of the same size",
        "cifar100-se2",
        {"t2": T2, "full": FULL, "learned": LEARNED, "variational": VARIATIONAL},
        (0,),
        measure_photographs,
        table_photographs,
        {"cpu": "table-cifar100", "paper": "table-cifar100-paper"},
        notes={"cpu": "The paper's numbers are of its larger network, all of CIFAR-100 and 300 epochs."},
        published={"full": "52.40", "learned": "57.02", "variational": "57.67"},
    ),
    "table-colormnist": Experiment(
        "test accuracy on draws of long-tailed ColorMNIST: ordinary, hue-equivariant, partial and augmented networks",
        "colormnist-lt",
        {
            "cnn-19k": T2,
            "cnn-26k": with_level("t2", width=20),
            "cnn-jitter": jittered,
            "cnn-tta": AVERAGED,
            "cnn-augerino": moved(T2, "shared"),
            "cnn-instaaug": moved(T2, "image"),
            "cnn-adaaug": moved(T2, "policy"),
            "ce3": FULL,
            "ce3-instaaug": moved(FULL, "image"),
            "partial3": partial_gcnn(3),
            "vp3": VARIATIONAL,
            "ce6": with_level("full", elements=6),
            "ce6-instaaug": moved(with_level("full", elements=6), "image"),
            "partial6": partial_gcnn(6),
            "vp6": with_level("variational", elements=6),
            "ce3-plain": as_published(FULL),
            "vp3-plain": as_published(VARIATIONAL),
        },
        (0, 1, 2, 3, 4),
        measure_colors,
        table_colors,
        {"cpu": "colormnist-lt", "paper": "colormnist-lt-paper"},
        draws=True,
        fewer=dict.fromkeys(("ce3-plain", "vp3-plain"), (0, 1))
        | dict.fromkeys(("cnn-jitter", "cnn-tta", "cnn-augerino", "cnn-instaaug", "cnn-adaaug"), (0, 1, 2))
        | dict.fromkeys(("ce3-instaaug", "partial3", "ce6", "ce6-instaaug", "partial6", "vp6"), (0, 1, 2)),
        notes={"cpu": COLORMNIST},
        published={digits: paper for *_, digits, paper, _, _ in COLOR}
        | {"ce3-plain": "87.1 ± 0.1", "vp3-plain": "85.4 ± 1.0"},
    ),
    "table-flowers": Experiment(
        "Flowers102: accuracy, accuracy over hue shifts and calibration of ResNet18s with and without levels",
        "flowers102",
        {
            "resnet": T2,
            "resnet-jitter": jittered,
            "resnet-instaaug": moved(T2, "image"),
            "resnet-adaaug": moved(T2, "policy"),
            "ce3": FULL,
            "ce3-hybrid": HYBRID,
            "ce3-wide": wide(FULL),
            "ce3-instaaug": moved(HYBRID, "image"),
            "ce3-adaaug": moved(HYBRID, "policy"),
            "learned": LEARNED,
            "partial3": partial_gcnn(3),
            "partial3-adaaug": moved(partial_gcnn(3), "policy"),
            "vp3": VARIATIONAL,
            "vp3-drawn": drawn(4),
            "resnet-wide": wide(T2),
            "ce3-hybrid-wide": wide(HYBRID),
            "learned-wide": wide(LEARNED),
            "partial3-wide": wide(partial_gcnn(3)),
            "vp3-wide": wide(with_level("variational", encoder=LIGHT)),
            "vp3-detached-wide": wide(with_level("variational", encoder=LIGHT, detached=True)),
            "vp3-drawn-wide": wide(drawn(4, encoder=LIGHT)),
            "ce6-hybrid": with_level("full", equivariant=2, elements=6),
            "ce6-instaaug": moved(with_level("full", equivariant=2, elements=6), "image"),
            "partial6": partial_gcnn(6),
            "vp6": with_level("variational", elements=6),
        },
        (0, 1),
        measure_colors,
        table_colors,
        {"cpu": "flowers102-cpu", "paper": "flowers102"},
        fewer=dict.fromkeys(
            (
                "resnet-instaaug",
                "resnet-adaaug",
                "ce3-instaaug",
                "ce3-adaaug",
                "partial3",
                "partial3-adaaug",
                "partial3-wide",
            ),
            (0,),
        ),
        optional=frozenset(
            (
                "resnet-wide",
                "ce3-hybrid-wide",
                "vp3-drawn",
                "vp3-drawn-wide",
                "ce6-hybrid",
                "ce6-instaaug",
                "partial6",
                "vp6",
            )
        ),
        notes={"cpu": FLOWERS},
        published=ADAAUG | {flowers: paper for *_, flowers, paper in COLOR},
        keys=("reliability",),
    ),
    "table-convert": Experiment(
        "an ordinary ResNet18, trained on Flowers102, converted to hues and fine-tuned (not in the paper)",
        "flowers102",
        {
            "plain": plain,
            "plain-tuned": tuned("plain", plain),
            "plain-jitter": tuned("plain", plain, hue_jitter=0.5),
            "hue3-full": tuned("plain", converted("full")),
            "hue3-learned": tuned("plain", converted("learned")),
            "hue3-vp": tuned("plain", converted("variational")),
        },
        (0, 1),
        measure_colors,
        table_colors,
        {"cpu": "table-convert", "paper": "table-convert-paper"},
        notes={"cpu": CONVERT},
    ),
    "fig-stability": Experiment(
        "weights of the group's elements during training: window, the paper's ranked softmax, Gumbel-softmax",
        "flowers102",
        {
            "window": with_level("variational", family="window"),
            "ranked": with_level("variational", family="ranked"),
            "gumbel": with_level("variational", family="gumbel"),
        },
        (0,),
        measure_nothing,
        table_stability,
        {"cpu": "fig-stability", "paper": "fig-stability-paper"},
        watch=16,
        history=follow,
        chart=chart_stability,
        notes={"cpu": STABILITY},
    ),
    "fig-ranges": Experiment(
        "digits whose range of rotations is known, image by image: does θ find its order? (not in the paper)",
        "mnist-ranges",
        {"variational": VARIATIONAL, "learned": LEARNED, "full": FULL},
        (0, 1, 2),
        measure_ranges,
        table_ranges,
        {"cpu": "fig-ranges", "paper": "fig-ranges-paper"},
        fewer={"learned": (0,), "full": (0,)},
        chart=chart_ranges,
        notes={"cpu": RANGES},
    ),
    "fig-turn-hue": Experiment(
        "a network on rotations × hues, for digits of which some may be turned and some recoloured (not in the paper)",
        "mnist-turn-hue",
        {"variational": VARIATIONAL, "learned": LEARNED, "full": FULL, "t2": T2},
        (0, 1, 2),
        measure_turn_hue,
        table_turn_hue,
        {"cpu": "fig-turn-hue", "paper": "fig-turn-hue-paper"},
        fewer={"learned": (0,), "full": (0,), "t2": (0,)},
        chart=chart_turn_hue,
        notes={"cpu": TURN_HUE},
    ),
    "fig-principle": Experiment(
        "the weight of the KL is swept: windows widen until the classification loss is touched",
        "mnist67-180",
        {f"lambda-{weight:g}": arm_of(weight) for weight in LAMBDAS},
        (0,),
        measure_principle,
        table_principle,
        {"cpu": "fig-principle", "paper": "fig-principle-paper"},
        chart=chart_principle,
        notes={"cpu": PRINCIPLE},
    ),
}
VIEWS = {
    "table-color": View(
        "the paper's table on colour: ten networks on long-tailed ColorMNIST and on Flowers102",
        {
            "table-colormnist": tuple(digits for *_, digits, _, _, _ in COLOR),
            "table-flowers": tuple(flowers for *_, flowers, _ in COLOR),
        },
        color_rows,
        table_color,
        notes="The equivariant network on Flowers102 is the hybrid, as in the paper. Budgets are those of the two "
        "experiments, whose pages say more of each row. On ColorMNIST all rows of ours were trained with shifted "
        "images and a balanced loss, of which the paper says nothing: its numbers compare with the arms ce3-plain and "
        "vp3-plain of table-colormnist. Draws differ by several points, so rows over other draws do not compare by "
        "their means.",
    ),
    "table-calibration": View(
        "NLL, Brier score and calibration error on Flowers102, and a reliability diagram",
        {"table-flowers": ("resnet", "ce3-hybrid", "learned", "partial3", "vp3")},
        calibration_rows,
        table_calibration,
        calibration_chart,
        notes="NLL in nats per image, Brier score as the sum over classes (0 to 2), ECE in 15 bins of equal width. The "
        "paper's numbers look divided by the 102 classes, so they are multiplied by 102 here.",
    ),
    "table-adaaug": View(
        "AdaAug on Flowers102: policies of hue shifts for each image, on networks with and without hues",
        {
            "table-flowers": (
                "resnet",
                "resnet-adaaug",
                "ce3-hybrid",
                "ce3-adaaug",
                "partial3",
                "partial3-adaaug",
                "vp3",
            )
        },
        adaaug_rows,
        table_adaaug,
        notes="The equivariant network is the hybrid. Policies are searched for over a third of the epochs, besides "
        "the budget, on a fifth of the training images; then all of them are trained on.",
    ),
    "fig-flowers-confidence": View(
        "confidence of single flowers against a shift of their hue, class by class",
        {"table-flowers": FLOWERS_ARMS},
        flowers_rows,
        table_examples,
        flowers_chart,
        notes=CONFIDENCE,
    ),
    "fig-equivariance-error": View(
        "the smallest and the largest invariance error of each class of Flowers102, on the group and off it",
        {"table-flowers": ("ce3", "vp3")},
        flowers_rows,
        table_errors,
        error_chart,
        notes=ERRORS,
    ),
}
COUNTS = {
    "table-evidence": Count(
        "what the datasets themselves say of rotation and hue, without any network (not in the paper)",
        measure_witness,
        table_witness,
        notes=WITNESS,
    ),
    "table-cost": Count(
        "parameters, operations, time and memory of the networks of Flowers102",
        measure_cost,
        table_cost,
        notes=COST,
    ),
}

REPRODUCTIONS: dict[str, Reproduction] = {**EXPERIMENTS, **VIEWS, **COUNTS}
"""All names that `vpgcnn reproduce` takes."""


def reproduction(name: str) -> Reproduction:
    """What is reproduced by this name."""
    if name not in REPRODUCTIONS:
        raise UserError(f"unknown experiment {name!r}: choose from {', '.join(REPRODUCTIONS)}")
    return REPRODUCTIONS[name]
