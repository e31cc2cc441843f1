"""table-relaxed: other ways to relax a symmetry, beside levels, with as many parameters and steps.

Each task is an experiment of its own, `relaxed-TASK`, which trains all ways; `table-relaxed` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Literal

from vpgcnn.groups import Product, Rotations
from vpgcnn.kernels import Constrained, Harmonic, Nonstationary, Projected, Relaxed, ResidualPathway, Siren
from vpgcnn.lab.experiments.arms import (
    ADAAUG,
    AUGERINO,
    AUTOAUGMENT,
    FULL,
    INSTAAUG,
    LEARNED_MIXTURE,
    METAAUGMENT,
    SHARED,
    T2,
    VARIATIONAL,
)
from vpgcnn.lab.experiments.base import Arm, Change, Experiment, Found, Row, View, markdown
from vpgcnn.lab.experiments.regret import MOST, measured
from vpgcnn.lab.networks import SE2Config
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.recipes import recipe
from vpgcnn.levels import Full, Mixture, Variational

__all__ = ["EXPERIMENTS", "VIEW"]

TASKS = ("mnist67-180", "mnist-multiple", "gtsrb-mirror", "gtsrb-colors")
Model = Callable[[SE2Config], SE2Config]


@dataclass(frozen=True)
class Way:
    """A way to relax a symmetry.

    Args:
        about: One line for the legend.
        change: What it makes of the settings of the recipe.
        on: The tasks that it exists for: all, those on circles (not mirrors), or those on rotations.
    """

    about: str
    change: Change
    on: Literal["all", "circles", "rotations"] = "all"


def model(change: Model) -> Change:
    """A change of the network alone."""

    def changed(config: TrainConfig) -> TrainConfig:
        assert isinstance(config.model, SE2Config)
        return replace(config, model=change(config.model))

    return changed


def _mixture(net: SE2Config) -> SE2Config:
    level = net.level if isinstance(net.level, Variational) else Variational()
    return replace(net, level=replace(level, family=Mixture(2)))


def _projected(net: SE2Config) -> SE2Config:
    """On quarter turns where the network is on all rotations: projections need tables."""
    group = Rotations(4) if isinstance(net.kernel, Siren) else net.group
    strength: float | tuple[float, ...] = (1.0, 1.0) if isinstance(group, Product) else 1.0
    return replace(net, level=Full(), group=group, kernel=Projected(strength))


def _nonstationary(net: SE2Config) -> SE2Config:
    omega = net.kernel.omega if isinstance(net.kernel, Siren) else Siren().omega
    return replace(net, level=Full(), kernel=Nonstationary(omega=omega))


WAYS = {
    "variational": Way("a level for each image", VARIATIONAL),
    "mixture": Way("a mixture of two windows for each image", model(_mixture), "circles"),
    "shared": Way("one learned level for all images", SHARED),
    "full": Way("fully equivariant", FULL),
    "t2": Way("the same network without a group, an ordinary CNN", T2),
    "relaxed": Way(
        "relaxed kernels of two banks (Wang et al., 2022)",
        model(lambda net: replace(net, level=Full(), kernel=Relaxed(2, of=net.kernel))),
    ),
    "relaxed-per-image": Way(
        "the same with weights for each image",
        model(lambda net: replace(net, level=Full(), kernel=Relaxed(2, of=net.kernel, per_image=True))),
    ),
    "rpp": Way(
        "an equivariant plus a free kernel (RPP: Finzi et al., 2021)",
        model(lambda net: replace(net, level=Full(), kernel=ResidualPathway(net.kernel))),
    ),
    "per": Way("a free kernel near equivariant ones (PER: Kim et al., 2023)", model(_projected)),
    "ace": Way(
        "free at first, led to equivariance, at a price (elastic ACE, 2025)",
        model(lambda net: replace(net, level=Full(), kernel=Constrained(net.kernel, elastic=1.0))),
    ),
    "nonstationary": Way(
        "a SIREN that sees the absolute element (van der Ouderaa et al., 2022)", model(_nonstationary)
    ),
    "harmonic": Way(
        "circular harmonics, fully equivariant (as in E(2)-CNN)",
        model(lambda net: replace(net, level=Full(), kernel=Harmonic())),
    ),
    "augerino": Way("an ordinary CNN and one learned range of augmentation (Augerino)", AUGERINO, "rotations"),
    "instaaug": Way("the same with a range for each image (InstaAug)", INSTAAUG, "rotations"),
    "learned-moves": Way(
        "the same with a mixture of two ranges for each image (after Singhal et al., 2023)",
        LEARNED_MIXTURE,
        "rotations",
    ),
    "adaaug": Way("the same with a searched policy (AdaAug)", ADAAUG, "rotations"),
    "metaaugment": Way(
        "the same with any rotation, and a learned weight for each moved image (MetaAugment)", METAAUGMENT, "rotations"
    ),
    "autoaugment": Way("the same with AutoAugment's policy for CIFAR-10, as published", AUTOAUGMENT, "rotations"),
}

ORDINARY = ("t2", "augerino", "instaaug", "learned-moves", "adaaug", "metaaugment", "autoaugment")
FREE = ("rpp", "per", "ace")
"""Ways with a free kernel, whose parameters grow with the square of the group."""
_DIGITS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("full", "shared", "nonstationary", *ORDINARY), (10, 10, 21)),
    **dict.fromkeys(("rpp", "ace"), (1, 1, 3)),
    "relaxed": (6, 6, 12),
    "relaxed-per-image": (6, 6, 11),
    "per": (3, 3, 5),
    "harmonic": (6, 6, 13),
}
WIDTHS: dict[str, dict[str, tuple[int, ...]]] = {
    "mnist67-180": _DIGITS,
    "mnist-multiple": _DIGITS,
    "gtsrb-mirror": {
        **dict.fromkeys(("full", "shared"), (25, 33, 67)),
        **dict.fromkeys(("relaxed", "per"), (18, 23, 47)),
        **dict.fromkeys(("rpp", "ace"), (14, 19, 39)),
        "t2": (35, 47, 93),
        "relaxed-per-image": (17, 22, 45),
        "nonstationary": (30, 41, 81),
        "harmonic": (32, 43, 86),
    },
    "gtsrb-colors": {
        **dict.fromkeys(("full", "shared"), (11, 11, 21)),
        **dict.fromkeys(FREE, (1, 1, 1)),
        "t2": (12, 12, 25),
        "relaxed": (7, 7, 15),
        "relaxed-per-image": (7, 7, 13),
        "nonstationary": (13, 13, 25),
        "harmonic": (4, 4, 9),
    },
}
"""Widths at which networks have as many parameters, within a tenth of the middle of the fewest and the most."""


def _sized(task: str, way: str) -> Change:
    """The change of a way, at as many parameters as the variational network of the task has."""

    def changed(config: TrainConfig) -> TrainConfig:
        config = WAYS[way].change(config)
        widths = WIDTHS[task].get(way)
        assert isinstance(config.model, SE2Config)
        return config if widths is None else replace(config, model=replace(config.model, widths=widths))

    return changed


def experiment(task: str) -> Experiment:
    """All ways on one task."""
    axes = {axis.name for axis in recipe(task).model.group.axes if axis.count > 1}
    exists = {"all": True, "circles": "mirror" not in axes, "rotations": axes == {"rotation"}}
    arms = {name: Arm(way.about, _sized(task, name)) for name, way in WAYS.items() if exists[way.on]}
    for name in FREE:
        about = f"{name} with the widths of the variational network, and many more parameters"
        arms[f"{name}-wide"] = Arm(about, WAYS[name].change, optional=True)
    return Experiment(
        name=f"relaxed-{task}",
        about=f"ways to relax a symmetry on {task} (not in the paper)",
        recipe=task,
        arms=arms,
        seeds=(0, 1, 2),
        measure=measured(recipe(task)),
        table=table_relaxed_runs,
        notes=(
            "Widths are such that the networks have as many parameters, within a tenth of their middle (without "
            "what predicts augmentations); epochs, batches and optimiser are the same. Free kernels (RPP, PER, ACE) "
            "then leave few channels; rpp-wide, per-wide and ace-wide have the same widths instead.",
            "MetaAugment holds out a tenth of the training images, so it takes a tenth fewer steps.",
            "PER is on quarter turns where others are on all rotations, because projections need tables.",
            "Unseen places: accuracy of free images at all places, and of bound ones within two thirds of their range, "
            f"for up to {MOST} test images.",
        ),
        in_paper=False,
    )


def table_relaxed_runs(rows: list[Row]) -> str:
    """One line for each arm and seed."""
    heads = [
        "arm",
        "seed",
        "validation",
        "test",
        "unseen: free",
        "unseen: bound",
        "θ AUROC",
        "ms per step",
        "parameters",
    ]
    lines = []
    for row in rows:
        truth = [one["auroc"] for one in row.get("truth", []) if one["auroc"] is not None]
        lines.append(
            [
                row["arm"],
                row["seed"],
                f"{row['validation']['accuracy']:.2%}",
                f"{row['test']['accuracy']:.2%}",
                *(_places(row, key) for key in ("free", "bound")),
                ", ".join(f"{value:.3f}" for value in truth) or "–",
                f"{_step(row):.0f}",
                f"{row['parameters']:,}",
            ]
        )
    return markdown(heads, lines)


def _step(row: Row) -> float:
    """Milliseconds for a step of training; those of a search for a policy count too."""
    steps: int = row["steps"] + row.get("search_steps", 0)
    return 1000 * float(row["seconds"]) / max(1, steps)


def _places(row: Row, key: str) -> str:
    found = {circle: places[key] for circle, places in row["places"].items() if places[key] is not None}
    if len(found) == 1:
        return f"{next(iter(found.values())):.1%}"
    return ", ".join(f"{circle} {value:.1%}" for circle, value in found.items()) or "–"


def relaxed_rows(found: Found) -> list[Row]:
    """For each task and way: means over seeds."""
    lines: list[Row] = []
    for task in TASKS:
        for way in EXPERIMENTS[task].arms:
            rows = [row for row in found.get(f"relaxed-{task}", []) if row["arm"] == way]
            if not rows:
                continue
            line: Row = {"task": task, "arm": way, "seeds": sorted(row["seed"] for row in rows)}
            line["accuracy"] = _spread([row["test"]["accuracy"] for row in rows])
            line["places"] = {
                f"{circle} {key}": _spread([row["places"][circle][key] for row in rows])
                for circle in rows[0]["places"]
                for key in ("free", "bound")
                if all(row["places"][circle][key] is not None for row in rows)
            }
            line["step"] = round(mean(_step(row) for row in rows), 1)
            line["parameters"] = rows[0]["parameters"]
            lines.append(line)
    return lines


def _spread(values: list[float]) -> list[float]:
    return [round(mean(values), 5), round(stdev(values), 5) if len(values) > 1 else 0.0]


def table_relaxed(rows: list[Row]) -> str:
    """One line for each task and way."""
    heads = ["task", "way", "test accuracy", "unseen places", "ms per step", "parameters", "seeds"]
    lines = []
    for row in rows:
        places = "; ".join(f"{name} {100 * value[0]:.1f}" for name, value in row["places"].items())
        accuracy = f"{100 * row['accuracy'][0]:.2f} ± {100 * row['accuracy'][1]:.2f}"
        seeds = ", ".join(map(str, row["seeds"]))
        name = "**variational**" if row["arm"] == "variational" else row["arm"]
        lines.append([row["task"], name, accuracy, places or "–", row["step"], f"{row['parameters']:,}", seeds])
    return markdown(heads, lines)


EXPERIMENTS = {task: experiment(task) for task in TASKS}

VIEW = View(
    name="table-relaxed",
    about="other ways to relax a symmetry beside levels, at as many parameters and steps (not in the paper)",
    sources={
        entry.name: tuple(name for name in entry.arms if not entry.arm(name).optional) for entry in EXPERIMENTS.values()
    },
    rows=relaxed_rows,
    table=table_relaxed,
    notes=(
        *(f"{name}: {way.about}." for name, way in WAYS.items()),
        "Unseen places: accuracy of free images wherever they are moved, and of bound ones inside their range.",
        "Augmentations move by rotation or hue (AutoAugment has other operations too), so they are on the tasks of "
        "rotations only.",
    ),
)
