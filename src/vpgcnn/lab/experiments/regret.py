"""regret: what a level loses against the best fixed level, with one default for every dataset.

For each task the same network is trained with windows of one fixed width for all images, with levels whose settings
were found by hand, and with the default. The best fixed width is chosen in hindsight, on validation images. The regret
of a level is its distance to that network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev

import torch
from torch import Tensor, nn

from vpgcnn.groups import Hue
from vpgcnn.lab.data import Dataset
from vpgcnn.lab.experiments import signs
from vpgcnn.lab.experiments.arms import T2
from vpgcnn.lab.experiments.base import Arm, Change, Experiment, Found, Measure, Row, View, markdown
from vpgcnn.lab.experiments.by_hand import SETTINGS, by_hand
from vpgcnn.lab.networks import to_unit
from vpgcnn.lab.report.chart import Chart, PointPanel, Points, around
from vpgcnn.lab.training.checkpoint import Card
from vpgcnn.lab.training.config import TrainConfig
from vpgcnn.lab.training.progress import Quiet
from vpgcnn.lab.training.recipes import recipe
from vpgcnn.levels import Fixed
from vpgcnn.measure import Circle, Places, at_places, auroc, rank_correlation, read_levels

__all__ = ["EXPERIMENTS", "VIEW"]

WIDTHS = (0.25, 0.5, 0.75, 1.0)
"""Fixed widths, besides windows that are closed."""
PLACES: dict[Circle, int] = {"rotation": 23, "hue": 11, "mirror": 1, "saturation": 6, "luminance": 6}
"""Places other than the image's own."""
MOST = 600
"""Test images that are moved, at most, and bound ones among them, of which some tasks have few."""
TASKS: dict[str, tuple[str, Change | None]] = {
    "mnist67-180": ("mnist67-180", None),
    "mnist-ranges": ("mnist-ranges", None),
    "mnist-ranges-eighth": ("mnist-ranges-eighth", None),
    "mnist-turn-hue": ("mnist-turn-hue", None),
    "gtsrb-turn": ("gtsrb-turn", None),
    "gtsrb-mirror": ("gtsrb-mirror", None),
    "cifar10-se2": ("cifar10-se2", None),
    "colormnist-lt": ("colormnist-lt", None),
    "colormnist-lt-6": ("colormnist-lt", lambda config: replace(config, model=replace(config.model, group=Hue(6)))),
    "flowers102": ("flowers102", None),
}
"""The name of each task: its recipe, and what is changed in it."""
BY_HAND = {"mnist-ranges-eighth": "mnist-ranges", "gtsrb-turn": "mnist67-180", "gtsrb-mirror": "mnist67-180"}
"""Recipes for which nothing was found by hand, and the one whose settings a user would have taken."""
LABELLED_BY_COLOR = ("colormnist-lt",)
"""Datasets in which the hue is a part of the label: no image may be moved."""


def fixed(theta: float) -> Change:
    """Gives every image the same window."""
    return lambda config: replace(config, model=replace(config.model, level=Fixed(theta)))


def closed(config: TrainConfig) -> TrainConfig:
    """Windows on the identity alone."""
    return fixed(1 / max(axis.count for axis in config.model.group.axes))(config)


def unchanged(config: TrainConfig) -> TrainConfig:
    """The recipe as it is."""
    return config


def circles(config: TrainConfig) -> list[Circle]:
    """What moves the images of a task: the circles of its group."""
    named: dict[str, Circle] = {circle: circle for circle in PLACES}
    return [named[axis.name] for axis in config.model.group.axes if axis.count > 1]


def measured(config: TrainConfig) -> Measure:
    """A measurement of one task: accuracy at unseen places, and θ against the truth where it is known.

    Args:
        config: The task's settings, whose group says what moves images.
    """
    moving = [] if config.data.name in LABELLED_BY_COLOR else circles(config)

    def measure(model: nn.Module, _: Card, dataset: Dataset, progress: Quiet) -> Row:
        device = next(model.parameters()).device
        model.eval()
        test = dataset.test
        row: Row = {"places": {}, "theta": {}}

        def predict(pixels: Tensor) -> Tensor:
            logits: Tensor = model(pixels)[0]
            return logits

        def moved(circle: Circle, some: Tensor, reach: Tensor | None) -> Places:
            images, known = to_unit(test.images[some].to(device)), None if reach is None else reach[some]
            return at_places(predict, images, test.labels[some], known, circle, on_progress=progress.advance)

        progress.begin("unseen places", 2 * sum(PLACES[circle] for circle in moving))
        for place, circle in enumerate(moving):
            reach = _column(test.reach, place)
            found = moved(circle, _evenly(torch.arange(len(test))), reach)
            if reach is not None and bool((reach < 1).any()):
                found = replace(found, bound=moved(circle, _evenly((reach < 1).nonzero()[:, 0]), reach).bound)
            row["places"][circle] = {key: _rounded(value) for key, value in vars(found).items()}
        reading = read_levels(model, test.images)
        row["twins"] = _rounded(signs.confused(reading.logits, test.labels, config.data.name))
        for layer, theta in reading.theta.items():
            row["theta"][layer] = [[round(float(one.mean()), 4), round(float(one.std()), 4)] for one in theta.unbind(1)]
        aware = list(reading.per_image().theta.values())
        if aware and test.reach is not None:
            last = aware[-1][:, -len(moving) :]  # an axis of one element is not a circle
            row["truth"] = [_against(theta, _column(test.reach, place)) for place, theta in enumerate(last.unbind(1))]
        return row

    return measure


def _evenly(numbers: Tensor) -> Tensor:
    """At most `MOST` of them, evenly chosen."""
    return numbers[:: max(1, len(numbers) // MOST)][:MOST]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _column(reach: Tensor | None, place: int) -> Tensor | None:
    """The true ranges on one circle."""
    return reach if reach is None or reach.dim() == 1 else reach[:, place]


def _against(theta: Tensor, reach: Tensor | None) -> Row:
    """How well θ separates free from bound images, and the rank correlation with the true range."""
    assert reach is not None
    free = reach == 1
    known = bool(free.any()) and bool((~free).any())
    return {
        "auroc": round(auroc(theta[free], theta[~free]), 4) if known else None,
        "rank_correlation": round(rank_correlation(theta, reach), 4),
        "theta": {f"{float(value):.4g}": round(float(theta[reach == value].mean()), 4) for value in reach.unique()},
    }


def table_runs(rows: list[Row]) -> str:
    """One line for each arm and seed."""
    heads = ["arm", "seed", "validation", "test", "test NLL", "unseen: free, bound, all moved", "θ of the last level"]
    heads += ["AUROC", "rank correlation", "minutes"]
    lines = []
    for row in rows:
        places = "; ".join(f"{circle}: {_places(found)}" for circle, found in row["places"].items())
        last = list(row["theta"].values())[-1] if row["theta"] else []
        truth = row.get("truth", [])
        cells = [row["arm"], row["seed"], f"{row['validation']['accuracy']:.2%}", f"{row['test']['accuracy']:.2%}"]
        cells += [f"{row['test']['nll']:.4f}", places or "–"]
        cells += [", ".join(f"{middle:.2f} ± {spread:.2f}" for middle, spread in last) or "–"]
        cells += [", ".join("–" if one["auroc"] is None else f"{one['auroc']:.3f}" for one in truth) or "–"]
        cells += [", ".join(f"{one['rank_correlation']:.3f}" for one in truth) or "–", f"{row['seconds'] / 60:.1f}"]
        lines.append(cells)
    return markdown(heads, lines)


def _places(found: dict[str, float | None]) -> str:
    return " / ".join("–" if found[key] is None else f"{found[key]:.1%}" for key in ("free", "bound", "moved"))


def experiment(task: str) -> Experiment:
    """The networks of one task."""
    name, change = TASKS[task]
    config = (change or unchanged)(recipe(name))

    def then(second: Change) -> Change:
        return lambda config: second((change or unchanged)(config))

    arms = {
        "default": Arm("a level for each image, with the default for every dataset", then(unchanged)),
        "by-hand": Arm(
            "a level for each image, with the λ, learning rate and first width that were found by hand"
            + ("" if name in SETTINGS else f" (those of {BY_HAND[name]})"),
            then(by_hand(BY_HAND.get(name, name))),
        ),
        "closed": Arm("every window on the identity alone", then(closed)),
    }
    axes = config.model.group.axes
    narrowest = 1 / max(axis.order or math.inf for axis in axes)
    for width in (width for width in WIDTHS if width > narrowest):  # narrower windows are closed
        arms[f"fixed-{round(100 * width)}"] = Arm(f"θ = {width:g} for every image", then(fixed(width)))
    plain = signs.PLAIN.get(task, Arm("the same network without a group", T2))
    arms["t2"] = replace(plain, change=then(plain.change))
    arms |= {arm: replace(entry, change=then(entry.change)) for arm, entry in signs.ARMS.get(task, {}).items()}
    return Experiment(
        name=f"regret-{task}",
        about=f"levels against fixed widths on {task} (not in the paper)",
        recipe=name,
        arms=arms,
        seeds=(0, 1, 2),
        measure=measured(config),
        table=table_runs,
        draws=name == "colormnist-lt",
        notes=(
            "Unseen places: accuracy of free images at all places, of bound ones within two thirds of their range, and "
            f"of all images at all places, for up to {MOST} test images and up to {MOST} bound ones (rows of 4d874eb "
            "and before: those among the former): rotations by multiples of 15°, hue shifts by multiples of 30°, "
            "mirrors.",
        ),
        claims=signs.CLAIMS.get(task, ()),
        in_paper=False,
    )


EXPERIMENTS = {task: experiment(task) for task in TASKS}
LEVELS = ("default", "by-hand")


def regret_rows(found: Found) -> list[Row]:
    """For each task: the best fixed level, and the learned ones with their regret."""
    lines: list[Row] = []
    for task in TASKS:
        rows = found.get(f"regret-{task}", [])
        arms = {arm: [row for row in rows if row["arm"] == arm] for arm in EXPERIMENTS[task].arms}
        fixed_arms = {arm: same for arm, same in arms.items() if same and arm in WIDE}
        if not fixed_arms:
            continue
        common = set.intersection(*({row["seed"] for row in same} for same in fixed_arms.values()))
        best = max(fixed_arms, key=lambda arm: _validated(fixed_arms[arm], common))
        shown = [arm for arm in (best, *LEVELS, "t2") if arms[arm]]
        compared = fixed_arms[best], list(fixed_arms.values())
        lines += [{"task": task, "arm": arm, "best": arm == best, **_summary(arms[arm], *compared)} for arm in shown]
    return lines


def _validated(rows: list[Row], seeds: set[int]) -> tuple[float, float]:
    """Mean validation accuracy on these seeds, on all if there are none; equal ones are ordered by their NLL."""
    chosen = [row["validation"] for row in rows if row["seed"] in seeds] or [row["validation"] for row in rows]
    return round(mean(one["accuracy"] for one in chosen), 6), -mean(one["nll"] for one in chosen)


def _summary(rows: list[Row], best: list[Row], fixed_rows: list[list[Row]]) -> Row:
    """Means over seeds, and differences to the best fixed level on equal seeds."""
    line: Row = {"seeds": sorted(row["seed"] for row in rows)}
    line["accuracy"] = _spread([row["test"]["accuracy"] for row in rows])
    line["nll"] = _spread([row["test"]["nll"] for row in rows])
    line["regret"] = _paired(best, rows, "accuracy")
    line["nll_regret"] = _paired(rows, best, "nll")
    line["places"], line["best_places"] = {}, {}
    for circle in rows[0]["places"]:
        for key in ("free", "bound", "moved"):
            values = [row["places"][circle][key] for row in rows]
            if None in values:
                continue
            line["places"][f"{circle} {key}"] = _spread(values)
            line["best_places"][f"{circle} {key}"] = max(
                mean(row["places"][circle][key] for row in same) for same in fixed_rows
            )
    truths = [row["truth"] for row in rows if "truth" in row]
    for key, name in (("auroc", "auroc"), ("rank", "rank_correlation")):
        columns = zip(*([one[name] for one in each] for each in truths), strict=True)
        line[key] = [_spread(values) for values in columns if None not in values]
    return line


def _spread(values: Sequence[float]) -> list[float]:
    return [round(mean(values), 5), round(stdev(values), 5) if len(values) > 1 else 0.0]


def _paired(one: list[Row], two: list[Row], key: str) -> list[float] | None:
    """one − two on the test images, on the seeds that both have."""
    other = {row["seed"]: row["test"][key] for row in two}
    gaps = [row["test"][key] - other[row["seed"]] for row in one if row["seed"] in other]
    return _spread(gaps) if gaps else None


def table_regret(rows: list[Row]) -> str:
    """One line for each task and level."""
    heads = ["task", "level", "test accuracy", "regret (points)", "NLL", "regret (nats)"]
    heads += ["unseen places (best of all fixed)", "θ AUROC", "rank correlation", "seeds"]
    lines = []
    for row in rows:
        best = row["best_places"]
        places = [f"{name} {100 * value[0]:.1f} ({100 * best[name]:.1f})" for name, value in row["places"].items()]
        name = "**default**" if row["arm"] == "default" else str(row["arm"])
        name += " (best fixed)" if row["best"] else ""
        regrets = ["–", "–"] if row["best"] else [_text(row["regret"], 100, 2), _text(row["nll_regret"], 1, 3)]
        cells = [row["task"], name, _text(row["accuracy"], 100, 2), regrets[0], _text(row["nll"], 1, 3), regrets[1]]
        cells += ["; ".join(places) or "–"]
        cells += [", ".join(_text(one, 1, 3) for one in row[key]) or "–" for key in ("auroc", "rank")]
        lines.append([*cells, ", ".join(map(str, row["seeds"]))])
    return markdown(heads, lines)


def _text(value: list[float] | None, scale: float, digits: int) -> str:
    return "–" if value is None else f"{scale * value[0]:.{digits}f} ± {scale * value[1]:.{digits}f}"


KINDS = {"default": "the default", "by-hand": "set by hand", "t2": "without a group"}
WIDE = {"closed": "closed", "fixed-25": "¼", "fixed-50": "½", "fixed-75": "¾", "fixed-100": "open"}
"""The fixed levels from the narrowest to the widest, with their texts in the figure."""


def chart_regret(found: Found) -> Chart:
    """For each task: accuracy on the test images against accuracy at unseen places, of all levels."""
    panels = []
    for task in TASKS:
        rows = found.get(f"regret-{task}", [])
        points = {arm: _point([row for row in rows if row["arm"] == arm]) for arm in EXPERIMENTS[task].arms}
        places = {arm: place for arm, place in points.items() if place is not None}
        if "default" not in places:
            continue
        wide = [arm for arm in WIDE if arm in places]
        series = [Points(name, [places[arm]], [arm]) for arm, name in KINDS.items() if arm in places]
        if wide:
            series.append(
                Points("one width for all images", [places[a] for a in wide], [WIDE[a] for a in wide], joined=True)
            )
        x, y = zip(*places.values(), strict=True)
        panels.append(PointPanel(task, series, around("test accuracy", x), around("accuracy at unseen places", y)))
    return Chart(
        panels, columns=min(2, len(panels)), title="Accuracy against robustness: up and to the right is better"
    )


def _point(rows: list[Row]) -> tuple[float, float] | None:
    """Mean accuracy, and mean accuracy at unseen places: of free and bound images alike, if it is known which are."""
    robust = []
    for row in rows:
        for places in row["places"].values():
            known = [places[key] for key in ("free", "bound") if places[key] is not None] or [places["moved"]]
            robust.append(mean(known))
    return (mean(row["test"]["accuracy"] for row in rows), mean(robust)) if robust else None


VIEW = View(
    name="regret",
    about="levels that learn by themselves against the best fixed level, with one default for every dataset",
    sources={
        entry.name: tuple(arm for arm in entry.arms if arm not in signs.ARMS.get(task, ()))
        for task, entry in EXPERIMENTS.items()
    },
    rows=regret_rows,
    table=table_regret,
    chart=chart_regret,
    notes=(
        "Figure: the mean over seeds of each level. Unseen places: the mean of free images at every place and of bound "
        "ones inside their range, where the truth is known; else of all images at every place.",
        "Regret: the best fixed level, chosen by its validation accuracy, minus the level; for the NLL the level minus "
        "the best fixed one. Positive is worse. Means ± standard deviations over seeds, differences on equal seeds.",
        "Unseen places: accuracy of test images that are moved; free: of images whose class never changes, at every "
        "place; bound: of the others, within two thirds of their range; moved: of all, at every place. In brackets, "
        "for each number, the highest of all fixed levels, chosen on the test images and not one and the same.",
        "Rows of the default from commits before 10dbd66 are of an older default, whose encoder answered θ and "
        "followed the slope of the loss there; those from before 4d874eb are of one with narrower encoders, whose "
        "windows were a little wider than the cheapest.",
        "By hand: settings of levels found for that dataset before; on mnist-ranges-eighth and the signs, where none "
        "were found, those of the digits.",
    ),
)
